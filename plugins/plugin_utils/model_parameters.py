# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The parameters of a causal language model, with its LoRA adapters, from its config alone. Pure.

data/model_families.json says for each model_type which modules a layer has, in the order in which the forward pass
uses them; gradients become ready in the reverse of that order. Shapes and names are those of transformers 5 and peft
0.21.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import pathlib
import re
import typing as t

from ansible_collections.gpufabric.cluster.plugins.plugin_utils.nearest_name import nearest_names

ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "float64": 8}
LINEAR = ("linear", "conv1d")
ROOT = -1
"""The layer of what stands outside all layers: embeddings, the last norm, the head."""


@dataclasses.dataclass(frozen=True)
class Parameter:
    """One parameter tensor. layer: which decoder layer it is in, or ROOT. module: the path of its module.

    registered: its place in the order of model.parameters(). shape: as in the state dict. dtype: a key of ITEM_BYTES.
    trainable: whether it gets a gradient. adapter: whether LoRA added it.
    """

    name: str
    module: str
    layer: int
    shape: tuple[int, ...]
    dtype: str
    trainable: bool
    adapter: bool = False
    registered: int = 0

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    @property
    def size(self) -> int:
        """Bytes."""
        return self.count * ITEM_BYTES[self.dtype]


@dataclasses.dataclass(frozen=True)
class Lora:
    """LoRA as peft's LoraConfig means it.

    target_modules: names that a module's path ends in, a regular expression of whole paths, ``all-linear``, or None
    for peft's choice for the model type.
    modules_to_save: modules trained whole, as copies. bias: ``none``, ``all`` or ``lora_only``. layers: decoder
    layers to adapt, None for all.
    rank_pattern: {end of a module's path: its own rank}. dtype: of the adapters; peft keeps them in float32 beside a
    half-precision model.
    """

    rank: int = 8
    target_modules: tuple[str, ...] | str | None = None
    modules_to_save: tuple[str, ...] = ()
    bias: str = "none"
    dora: bool = False
    layers: tuple[int, ...] | None = None
    rank_pattern: t.Mapping[str, int] = dataclasses.field(default_factory=dict)
    dtype: str = "float32"

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ValueError(f"workload: the LoRA rank is {self.rank}, expected 1 or more")
        if self.bias not in ("none", "all", "lora_only"):
            raise ValueError(f"workload: the LoRA bias is {self.bias!r}, expected none, all or lora_only")
        _known_dtype(self.dtype)


class _Module(t.NamedTuple):
    path: str
    layer: int
    kind: str
    out: tuple[int, ...]
    into: tuple[int, ...]
    bias: bool


def _known_dtype(dtype: str) -> str:
    if dtype not in ITEM_BYTES:
        raise ValueError(f"workload: the dtype is {dtype!r}, expected one of {', '.join(ITEM_BYTES)}")
    return dtype


@functools.cache
def _data() -> dict[str, t.Any]:
    path = pathlib.Path(__file__).parent / "data" / "model_families.json"
    return dict(json.loads(path.read_text(encoding="utf-8")))


def families() -> list[str]:
    """The model types whose layers are known."""
    return sorted(_data()["families"])


def _family(name: str) -> dict[str, t.Any]:
    """A family with what it takes over from another laid under it."""
    known = _data()["families"]
    if name not in known:
        near = nearest_names(name.upper(), [one.upper() for one in known])
        hint = f" (did you mean {near[0].lower()}?)" if near else ""
        raise ValueError(
            f"workload: the model type {name!r} is not known{hint}; known are {', '.join(sorted(known))}, "
            "and any other can be given as a list of parameters"
        )
    own = dict(known[name])
    if "as" not in own:
        return own
    base = _family(own.pop("as"))
    made = {**base, **own, "defaults": {**base.get("defaults", {}), **own.get("defaults", {})}}
    if "layer" not in own:
        biases = own.get("biases", {})
        layer = [[*module[:4], biases.get(module[0], module[4])] for module in base["layer"]]
        for after, module in own.get("insert", ()):
            layer.insert(next(k for k, other in enumerate(layer) if other[0] == after) + 1, module)
        made["layer"] = layer
    return made


class Model:
    """A config read: its sizes, modules in forward order, and what of it is shared.

    config: a Hugging Face config.json as a mapping (for a model of several parts, its text_config), or sizes alone
    (hidden_size, num_hidden_layers, num_attention_heads, intermediate_size, vocab_size), which are taken for a
    llama's. Raises ValueError, one sentence, for a model type that is not known or a size that is missing.
    """

    def __init__(self, config: t.Mapping[str, t.Any]) -> None:
        inner = config.get("text_config")
        self.config = {**config, **inner} if isinstance(inner, t.Mapping) else dict(config)
        self.model_type = str(self.config.get("model_type", "llama"))
        if self.model_type.endswith("_text") and self.model_type not in _data()["families"]:
            self.model_type = self.model_type[: -len("_text")]
        self.family = _family(self.model_type)
        self.sizes = self._sizes()
        self.tied = bool(self._value("tie_word_embeddings"))
        self.layers = self.sizes["L"]

    def _value(self, key: str) -> t.Any:
        value = self.config.get(key)
        return self.family["defaults"].get(key) if value is None else value

    def _size(self, symbol: str, default: int | None = None) -> int:
        keys = _data()["sizes"][symbol]
        value = next((self.config[key] for key in keys if self.config.get(key) is not None), default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"workload: {keys[0]} of the model's config is {value}, expected a whole number above 0")
        return value

    def _sizes(self) -> dict[str, int]:
        """Every size that the table of families uses, by its symbol there."""
        hidden, heads = self._size("H"), self._size("A")
        wide = self._value("intermediate_of_hidden")
        size = {
            "1": 1,
            "H": hidden,
            "3H": 3 * hidden,
            "L": self._size("L"),
            "V": self._size("V"),
            "I": self._size("I", wide * hidden if wide else None),
        }
        head = self._size("D", hidden // heads)
        groups = self._size("G", heads) * head
        size.update(
            {"D": head, "D/2": head // 2, "AD": heads * head, "GD": groups, "AD+2GD": heads * head + 2 * groups}
        )
        size["2I"] = 2 * size["I"]
        size["R/2"] = int(head * float(self.config.get("rotary_pct") or self._value("rotary_share") or 1)) // 2
        used = {symbol for module in self._table() for side in module[2:4] for symbol in side}
        if used & {"P", "P+2"}:
            size["P"] = self._size("P")
            size["P+2"] = size["P"] + 2
        if "E" in used:
            size["E"] = self._size("E")
        if "2M" in used:
            size["M"] = self._size("M")
            size["2M"] = 2 * size["M"]
        return size

    def _table(self) -> list[list[t.Any]]:
        return [*self.family["before"], *self.family["layer"], *self.family["after"], self.family["head"]]

    def modules(self) -> list[_Module]:
        """Every module that has parameters of its own, in forward order; a head that shares the embedding's weight is
        left out.
        """
        made = [self._module(ROOT, "", entry) for entry in self.family["before"]]
        for layer in range(self.layers):
            prefix = f"{self.family['layers']}.{layer}."
            made += [self._module(layer, prefix, entry) for entry in self.family["layer"]]
        made += [self._module(ROOT, "", entry) for entry in self.family["after"]]
        return made if self.tied else [*made, self._module(ROOT, "", self.family["head"])]

    def registered(self) -> list[str]:
        """Paths of modules() in the order of model.parameters()."""
        first, last = self.family["before"], self.family["after"]
        order = self.family.get("registered") or [entry[0] for entry in self.family["layer"]]
        layers = [f"{self.family['layers']}.{layer}.{name}" for layer in range(self.layers) for name in order]
        ends = [entry[0] for entry in last]
        paths = [entry[0] for entry in first]
        paths += ends + layers if self.family.get("norm_before_layers") else layers + ends
        return paths if self.tied else [*paths, self.family["head"][0]]

    def _module(self, layer: int, prefix: str, entry: t.Sequence[t.Any]) -> _Module:
        name, kind, out, into, bias = entry
        given = bool(self._value(bias)) if isinstance(bias, str) else bool(bias)
        sides = [tuple(self.sizes[symbol] for symbol in side) for side in (out, into)]
        return _Module(prefix + name, layer, kind, sides[0], sides[1], given)

    def buffers(self) -> list[int]:
        """Bytes of every buffer that DDP broadcasts: rotary frequencies and the like, in float32."""
        return [ITEM_BYTES["float32"] * self.sizes[symbol] for symbol in self.family["buffers"]]

    def dtype(self) -> str:
        """The dtype that the config names; float32 where it names none."""
        named = self.config.get("dtype") or self.config.get("torch_dtype") or "float32"
        return _known_dtype(str(named).rpartition(".")[2])


def parameters(model: Model, lora: Lora | None = None, dtype: str | None = None) -> list[Parameter]:
    """Every parameter in forward order: all trainable without `lora`, else what `lora` trains. dtype: None for the
    config's.

    Raises ValueError where target_modules or modules_to_save match nothing.
    """
    base = _known_dtype(dtype) if dtype else model.dtype()
    modules = model.modules()
    whole = [parameter for module in modules for parameter in _own(module, base, module.path, True)]
    made = whole if lora is None else _adapted(model, modules, lora, base)
    place = {module: number for number, module in enumerate(model.registered())}
    order = sorted(made, key=lambda one: (place[one.module.partition(".lora_")[0]], _rank_within(one)))
    numbers = {parameter.name: number for number, parameter in enumerate(order)}
    return [dataclasses.replace(parameter, registered=numbers[parameter.name]) for parameter in made]


def _rank_within(parameter: Parameter) -> int:
    """Where a parameter stands among those of its module: weight, bias, adapters, magnitude."""
    if parameter.adapter:
        return 3 if ".lora_magnitude_vector." in parameter.name else 2
    return 1 if parameter.name.endswith(".bias") else 0


def _adapted(model: Model, modules: t.Sequence[_Module], lora: Lora, base: str) -> list[Parameter]:
    made: list[Parameter] = []
    targets = _targets(model, modules, lora)
    saved = {module.path for module in modules if _ends_in(module.path, lora.modules_to_save)}
    for name in lora.modules_to_save:
        if not any(_ends_in(module.path, (name,)) for module in modules):
            raise ValueError(f"workload: modules_to_save names {name}, which is no module of a {model.model_type}")
    for module in modules:
        if module.path in saved:
            made += _own(module, base, f"{module.path}.original_module", False)
            made += _own(module, base, f"{module.path}.modules_to_save.default", True)
        elif module.path in targets:
            own = _own(module, base, f"{module.path}.base_layer", False)
            made += [_with_bias(parameter, lora.bias != "none") for parameter in own]
            made += _adapter(module, lora, base)
        else:
            made += [_with_bias(parameter, lora.bias == "all") for parameter in _own(module, base, module.path, False)]
    return made


def _with_bias(parameter: Parameter, trained: bool) -> Parameter:
    return dataclasses.replace(parameter, trainable=True) if trained and parameter.name.endswith(".bias") else parameter


def _own(module: _Module, dtype: str, path: str, trainable: bool) -> list[Parameter]:
    """The module's own weight and bias, in the order that gives the reverse of the order of their gradients."""
    shape = (*module.into, *module.out) if module.kind == "conv1d" else (*module.out, *module.into)
    name = path if module.kind == "experts" else f"{path}.weight"
    weight = Parameter(name, module.path, module.layer, shape, dtype, trainable)
    if not module.bias:
        return [weight]
    bias = Parameter(f"{path}.bias", module.path, module.layer, module.out, dtype, trainable)
    return [bias, weight] if module.kind == "layer_norm" else [weight, bias]


def _adapter(module: _Module, lora: Lora, base: str) -> list[Parameter]:
    patterns = (rank for end, rank in lora.rank_pattern.items() if _ends_in(module.path, (end,)))
    rank = next(patterns, lora.rank)
    dtype = lora.dtype if ITEM_BYTES[base] < ITEM_BYTES["float32"] else base
    (out,), (into,) = module.out, module.into
    magnitude = [("lora_magnitude_vector.default.weight", (out,))] if lora.dora else []
    shapes = [*magnitude, ("lora_A.default.weight", (rank, into)), ("lora_B.default.weight", (out, rank))]
    if module.kind == "embedding":
        shapes = [*magnitude, ("lora_embedding_A.default", (rank, out)), ("lora_embedding_B.default", (into, rank))]
    return [
        Parameter(
            f"{module.path}.{name}",
            f"{module.path}.{name.removesuffix('.weight')}",
            module.layer,
            shape,
            dtype,
            True,
            True,
        )
        for name, shape in shapes
    ]


def _ends_in(path: str, names: t.Iterable[str]) -> bool:
    return any(path == name or path.endswith(f".{name}") for name in names)


def _targets(model: Model, modules: t.Sequence[_Module], lora: Lora) -> set[str]:
    """Paths of the modules that get an adapter, matched as peft matches them."""
    wanted = lora.target_modules
    if wanted is None:
        wanted = model.family["lora_targets"]
        if wanted is None:
            raise ValueError(
                f"workload: peft has no usual target modules for a {model.model_type}; name target_modules"
            )
        wanted = tuple(wanted)
    eligible = [m for m in modules if m.kind in LINEAR or m.kind == "embedding"]
    inside = [m for m in eligible if m.layer != ROOT]
    if wanted == "all-linear":
        found = [module for module in inside if module.kind in LINEAR]
    elif isinstance(wanted, str):
        found = [module for module in eligible if re.fullmatch(wanted, module.path)]
    else:
        found = [module for module in eligible if _ends_in(module.path, wanted)]
        for name in wanted:
            if not any(_ends_in(module.path, (name,)) for module in eligible):
                names = sorted({module.path.rpartition(".")[2] for module in eligible})
                raise ValueError(f"workload: target_modules names {name}, a {model.model_type} has {', '.join(names)}")
    if lora.layers is not None:
        found = [module for module in found if module.layer in lora.layers]
    if not found:
        raise ValueError(f"workload: target_modules {wanted!r} match no module of a {model.model_type}")
    return {module.path for module in found}
