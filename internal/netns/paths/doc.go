// SPDX-License-Identifier: Apache-2.0

// Package paths holds the network namespaces open that some paths lead to, and
// notices when a path leads to another: a name that was removed and given anew
// (ip netns del, ip netns add) is another namespace. The new one takes the place of
// the old one, which is let go.
//
// Only a name is followed, which is a mount such as /run/netns/NAME. What a path of
// /proc led to at the start is held for good: process ids and descriptors are given
// again, to whomever. Where a path leads nowhere, or one of /proc elsewhere, what it
// led to last is kept, since its processes may live on, and Err says so.
//
// It looks at the paths when told to, and in Watch. It reads and writes nothing
// inside the namespaces.
//
// Privileges: as those of netns.Open. Kernel floor: as package netns.
//
// Goroutines: all methods may be called from any goroutine; the package starts
// none. Watch runs in its caller's.
package paths
