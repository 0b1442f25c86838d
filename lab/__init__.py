# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""An embedded cluster of virtual machines with real kernels, real SSH and Soft-RoCE devices."""
