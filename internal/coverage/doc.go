// SPDX-License-Identifier: Apache-2.0

// Package coverage checks what the rest of the agent claims: how many connections
// of the node the policy names, how many of them are bounded as it wants, and
// which are not, for what reason.
//
// It is the check on the programs and on package adopt, so that it uses neither
// their counters nor their walks. inet_diag lists the connections of one namespace
// after the other; the policy is matched in Go; a look by tuple (loader.Programs.
// Look) says whether the socket has a record and what is set on it. A canary, a
// connection opened in the programs' cgroup for nothing else, proves that they
// fire.
//
// It changes nothing: what it finds it tells, and asks package adopt to begin.
//
// Privileges: CAP_SYS_ADMIN to enter namespaces and to make the canary's, leave to
// write to the programs' cgroup unless it is the hierarchy's root, and what a look
// needs. Kernel: 5.10 with inet_diag for TCP, without which nothing is
// known; cgroups of sockets are told since 5.7.
//
// Goroutines: Run is for one goroutine, and starts none beside the canary's
// process; every other method may be called from any.
package coverage
