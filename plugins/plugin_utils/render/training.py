# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What communication costs a training, as a table of text: a row for each training and setting, and what of it is dear."""

from __future__ import annotations

import typing as t

TRAINING_COLUMNS = (
    "training", "setting", "ranks", "step (ms)", "communication", "not hidden (ms)", "overlap", "messages (MB)",
    "they take (ms)", "predicted (ms)", "GB/s", "of the best", "rules",
)  # fmt: skip


def training_rows(record: t.Mapping[str, t.Any]) -> list[list[str]]:
    """Cells of TRAINING_COLUMNS; times are medians, step and not hidden with the smallest and the largest. [] where none was trained."""
    results = [parts["lora"] for parts in record["nodes"].values() if "lora" in parts]
    return [_row(one, result) for result in results for one in result["trainings"]]


def _row(one: t.Mapping[str, t.Any], result: t.Mapping[str, t.Any]) -> list[str]:
    return [
        one["name"],
        one["setting"],
        str(result["ranks"]),
        _range(one["step_s"]),
        f"{one['communication_share']:.0%}",
        _range(one["exposed_s"]),
        f"{one['overlap']:.0%}",
        f"{one['messages']} ({one['sent_bytes'] / 1e6:.4g})",
        f"{1e3 * one['transfer_s']['median']:.4g}",
        f"{1e3 * one['predicted_s']:.4g}",
        f"{one['algbw_gbs']:.3g}",
        f"{one['bandwidth_utilisation']:.0%}",
        one["rules"],
    ]


def _range(value: t.Mapping[str, float]) -> str:
    return f"{1e3 * value['median']:.4g} ({1e3 * value['low']:.4g} to {1e3 * value['high']:.4g})"


def dearest_rows(record: t.Mapping[str, t.Any]) -> list[list[str]]:
    """[training, setting, collective, size, count, share of the predicted time]: the sizes that matter."""
    results = [parts["lora"] for parts in record["nodes"].values() if "lora" in parts]
    return [
        [
            one["name"],
            one["setting"],
            entry["collective"],
            str(entry["size"]),
            str(entry["count"]),
            f"{entry['share']:.0%}",
        ]
        for result in results
        for one in result["trainings"]
        for entry in one["dearest"]
    ]


DEAREST_COLUMNS = ("training", "setting", "collective", "size (bytes)", "in a step", "of the predicted time")


def training_lines(record: t.Mapping[str, t.Any]) -> list[str]:
    """A line for each training and setting, for a terminal."""
    shown = ("step (ms)", "communication", "not hidden (ms)", "predicted (ms)")
    rows = [dict(zip(TRAINING_COLUMNS, row, strict=True)) for row in training_rows(record)]
    return [
        f"{row['training']}, setting {row['setting']}: {', '.join(f'{name} {row[name]}' for name in shown)}, {row['rules']} rules"
        for row in rows
    ]
