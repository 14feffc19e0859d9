// SPDX-License-Identifier: Apache-2.0

// Package conntrack asks the kernel's connection tracking one thing: who is
// really at the other end of a connection, where address translation of this
// host answers for the peer (kernel-facts P10).
//
// It makes one exact request and no dump, changes nothing, and has no opinion
// on what the answer means. It sees translations of the connection's own
// network namespace alone, not those of a namespace or host further on, nor a
// transparent proxy, which translates nothing.
//
// Wire format (wire.go) and input and output (conntrack.go) are apart; the first
// is pure.
//
// Privileges: CAP_NET_ADMIN over the namespace. Kernel floor: 2.6.14 with
// CONFIG_NF_CT_NETLINK; a module that is not loaded is loaded by the kernel where
// connection tracking itself is there.
//
// Goroutines: a Tracker may be used by any number. The kernel answers under the mutex
// of its conntrack subsystem, one at a time on the whole host, and holds it while somebody
// else flushes or changes entries, seconds where there are a million. A Tracker gives up
// after its limit; up to eight threads go on waiting for the kernel.
package conntrack
