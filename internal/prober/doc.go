// SPDX-License-Identifier: Apache-2.0

// Package prober asks the peer of one TCP connection whether it still lives: its
// host, on that connection's own way through the network (Prober), and, where
// the policy says so, its application, on a connection of the prober's own
// (Apps).
//
// # In the path
//
// The question is a segment shaped like the kernel's keepalive: a bare ACK, one
// sequence number below the oldest unacknowledged byte, sent from a raw socket
// in the connection's network namespace. A peer that has the connection must
// answer it with an ACK, one that has lost it answers with a RST; either answer
// goes to the connection's own socket, where the kernel counts it. Neither
// stream nor socket changes by the question (kernel-facts P2, P3, P9).
//
// A Prober only sends. It never reads a socket's counters, so it knows nothing
// of answers; it does not decide when to ask, how often (peers answer about two
// such segments a second, kernel-facts P5) or what silence means. It dials
// nothing.
//
// A raw socket does not follow the connection by itself (kernel-facts P8).
// Every segment is bound to the connection's source address, to the device of
// its cached route and to its mark, and over IPv6 carries its flow label. Where
// this host translates the peer's address (a redirect, a service) it is bound to no
// device, so that it is routed once more as the connection's own are. What
// cannot be followed, because a snapshot does not tell: a mark that a rule of this
// host's gives to packets of the connection by their owner; an IP_TTL, a priority
// or IP options that the application set. Neither can which one of several next hops
// on the same device the connection uses, nor routing rules by port, protocol or
// owner, nor IPsec; those are noticed, and Send says so. A source address
// that this host has lost looks like a transparent proxy's and is probed.
//
// # Of the application
//
// A question of Apps is bytes out on a new connection, opened inside the
// connection's network namespace: a GET over HTTP/1.1, the unary call
// grpc.health.v1.Health/Check over HTTP/2, or bytes that the policy gives; all
// three without TLS. Any byte back is an answer: an error, a refusal, or what a
// server of another protocol says to such a question. What it means is not
// looked at; a gateway that answers for a hung application answers.
//
// A new connection is never evidence about an old one (kernel-facts L4), and the
// only outcome that could cost one is silence. So silence is claimed only where
// this question's own connection proves it: opened, every byte of the question
// acknowledged by the peer's host, that host within reach until the timeout by
// its answers to the kernel's keepalives, no end of the connection, and no long sleep of
// this machine meanwhile. A full
// accept queue, which takes a connection in the client's eyes alone, is no
// silence, and neither is an answer that is lost on the way. Timeouts below two
// seconds leave no time for keepalives: there a path that is lost after the
// question was acknowledged looks like silence.
//
// The connection is routed as the namespace routes any new one; mark, device
// and source of the old one are not followed. It ends by a FIN, after what the
// peer still says was read, for up to two seconds and 128 KiB. A stopped
// application has each question wait in its accept queue: once that is full, it
// is silent no more but cannot be connected to.
//
// # Privileges
//
// CAP_NET_RAW and CAP_NET_ADMIN (to ask conntrack, and for marked connections),
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
// none, beyond what [netns.NS.Do] needs, and does not block on the network. It waits for
// conntrack as package conntrack does.
//
// Apps may be used by any number of goroutines, too. It starts a few for each
// question under way, 64 questions at the most, and one for each that waits for
// its turn; Close waits for all of them. While it connects, a question keeps a
// thread in the namespace.
package prober
