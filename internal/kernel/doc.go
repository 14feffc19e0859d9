// SPDX-License-Identifier: Apache-2.0

// Package kernel names the abilities of Linux that the agent uses and not every
// kernel has that it runs on, with the version that brought each.
//
// It knows and does not look: whether this kernel has an ability is found out
// where it is used, by using it. The versions are those of the source at
// kernel.org; a distribution may have an ability earlier, or have built it out.
//
// Privileges: none. Kernel floor: none. Everything in it is immutable.
package kernel
