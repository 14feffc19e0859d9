// SPDX-License-Identifier: Apache-2.0

// Package loader owns the BPF objects: it loads and attaches them, swaps the
// policy in the kernel, reads their counters and events, and runs those that
// the agent runs itself (the look at one socket, the walks over all of them).
// The bindings generated from bpf/ stay inside; callers see conn, policy and
// plain Go types.
//
// It decides nothing, enters no namespace but one of its own for a moment (Load
// tries something there) and closes no socket but those it is told to. Look, the
// walks and adoption act in the network namespace of the calling thread; package
// sockets puts the thread there.
//
// Privileges: CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON. Kernel: Linux 5.10 with
// BTF and cgroup v2; walks need 5.11, provoked keepalives and adoption 5.15, the
// walk that closes sockets 6.5. What the kernel lacks is a *MissingError, or for
// the walks an error that wraps ErrUnsupported.
//
// A *Programs may be used by many goroutines at the same time, except Attach
// and Close.
package loader
