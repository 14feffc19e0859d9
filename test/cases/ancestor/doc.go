// SPDX-License-Identifier: Apache-2.0

// Package ancestor builds an agent whose records have another layout, as an agent that
// was there before an upgrade may have had. It needs the go command, and nothing of
// the kernel's.
package ancestor
