#!/bin/sh
# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
#
# Runs inside mmdebstrap's namespace with the root directory of the image as its only argument, after the packages
# and the files of rootfs/ are in place. Leaves /boot/vmlinuz and /boot/initrd.cpio for the builder to take out.
set -eu
root=$1
here=$root/lab-build/base

# The kernel's package is unpacked, not installed: its maintainer scripts would build an initramfs that nobody boots.
kernel_package=$(APT_CONFIG=$MMDEBSTRAP_APT_CONFIG apt-cache depends linux-image-amd64 \
    | awk '$1 == "Depends:" && $2 ~ /^linux-image-[0-9]/ { print $2; exit }')
[ -n "$kernel_package" ] || { echo "linux-image-amd64 names no kernel package" >&2; exit 1; }
release=${kernel_package#linux-image-}
(cd "$here" && APT_CONFIG=$MMDEBSTRAP_APT_CONFIG apt-get -qq -o APT::Sandbox::User=root download "$kernel_package")
mkdir "$here/kernel"
dpkg-deb -x "$here"/"$kernel_package"_*.deb "$here/kernel"
unpacked=$(dirname "$(find "$here/kernel" -name modules.builtin)")

# Only what a node can use: networking, RDMA, the virtio devices and a few file systems.
modules=$root/lib/modules/$release
mkdir -p "$modules/kernel"
cp "$unpacked"/modules.builtin* "$unpacked/modules.order" "$modules/"
while read -r pattern; do
    case $pattern in '' | '#'*) continue ;; esac
    for path in "$unpacked"/kernel/$pattern; do
        [ -e "$path" ] || continue
        target=$modules/kernel/$(dirname "${path#"$unpacked/kernel/"}")
        mkdir -p "$target"
        cp -r "$path" "$target/"
    done
done < "$here/modules.txt"
# A compressed module costs an emulated processor a good part of a second each time it is loaded.
find "$modules" -name '*.ko.xz' -exec xz -d {} +
depmod -b "$root" "$release"

ramdisk=$here/ramdisk
mkdir -p "$ramdisk/bin" "$ramdisk/dev" "$ramdisk/proc" "$ramdisk/root" "$ramdisk/modules"
cp "$(command -v busybox)" "$ramdisk/bin/busybox"
install -m 0755 "$here/init" "$ramdisk/init"
for module in virtio_pci virtio_blk virtio_net ext4; do
    modprobe -d "$root" -S "$release" --show-depends "$module"
done | awk '$1 == "insmod" && !seen[$2]++ { print $2 }' | while read -r file; do
    cp "$file" "$ramdisk/modules/"
    basename "$file" >> "$ramdisk/modules/order"
done
(cd "$ramdisk" && find . | cpio --quiet -o -H newc) > "$root/boot/initrd.cpio"
cp "$here/kernel/boot/vmlinuz-$release" "$root/boot/vmlinuz"

# rdma-core loads these as soon as an RDMA device appears. On a bare node that is the collection's work, so that a run
# against the lab has something to do and a check has something to find.
sed -i 's/^\([a-z]\)/# \1/' "$root"/etc/rdma/modules/*.conf

chroot "$root" useradd --create-home --shell /bin/bash --uid 1000 ops
chmod 0440 "$root/etc/sudoers.d/ops"
chroot "$root" systemctl --quiet set-default multi-user.target
chroot "$root" systemctl --quiet enable ssh.service lab-network.service lab-rdma.service lab-ready.service
# None of these serves a node that lives for an hour, and each costs an emulated processor time at boot.
xargs chroot "$root" systemctl --quiet mask < "$here/masked-units.txt"
# logind is needed to reboot, not to boot: the bus starts it when it is asked for.
ln -s /dev/null "$root/etc/systemd/system/multi-user.target.wants/systemd-logind.service"

rm -f "$root"/etc/ssh/ssh_host_* "$root/var/lib/dbus/machine-id"
: > "$root/etc/machine-id"
: > "$root/etc/fstab"
: > "$root/etc/resolv.conf"
rm -rf "$root"/usr/share/doc/* "$root"/usr/share/man/* "$root"/usr/share/locale/* "$root"/var/log/*.log "$root/lab-build"
