// SPDX-License-Identifier: Apache-2.0

// Package prober asks the peer of one TCP connection, on that connection's own
// way through the network, whether it still lives.
//
// The question is a segment shaped like the kernel's keepalive: a bare ACK, one
// sequence number below the oldest unacknowledged byte, sent from a raw socket
// in the connection's network namespace. A peer that has the connection must
// answer it with an ACK, one that has lost it answers with a RST; either answer
// goes to the connection's own socket, where the kernel counts it. Neither
// stream nor socket changes by the question (kernel-facts P2, P3, P9).
//
// The package only sends. It never reads a socket's counters, so it knows
// nothing of answers; it does not decide when to ask, how often (peers answer
// about two such segments a second, kernel-facts P5) or what silence means.
// It dials nothing.
//
// # The way
//
// A raw socket does not follow the connection by itself (kernel-facts P8).
// Every segment is bound to the connection's source address, to the device of
// its cached route and to its mark, and over IPv6 carries its flow label. What
// cannot be followed, because a snapshot does not tell: an IP_TTL, an IPv6 flow
// label, a priority or IP options that the application set; routing rules by
// port, protocol or owner; IPsec policies that select TCP alone; and which one
// of several next hops on the same device the connection uses. A source address
// that this host has lost looks like a transparent proxy's and is probed.
//
// # Privileges
//
// CAP_NET_RAW and, for marked connections before Linux 5.17, CAP_NET_ADMIN,
// in the user namespace that owns the network namespace; entering another
// network namespace needs what package netns needs. The process must be in the
// initial time namespace: the timestamp option carries the kernel's own
// CLOCK_MONOTONIC.
//
// Kernel floor: 5.1 (SO_BINDTOIFINDEX).
//
// # Goroutines
//
// A Prober has no state and may be used by any number of goroutines. It starts
// none, beyond what [netns.NS.Do] needs, and does not block on the network.
package prober
