// SPDX-License-Identifier: Apache-2.0

// Package demo plays the incidents that sockhealth ends, on this machine and
// with real sockets, and judges what happened by the incidents' own figures.
//
// The pool incident (pool.go) is a list of runs played side by side, each on a
// bed of its own: the namespaces of a lab, a client, a peer and a replacement as
// processes of their own, and where sockhealth plays, a cgroup and an agent
// ("sockhealth run", the same binary). The call incident (call.go) is a list of
// cases (call_cases.go) on one bed, each with a peer of its own, which one client
// calls under one agent. Both are played at the same time.
//
// What is judged is what the clients experienced, what the kernel says of their
// connections (inet_diag) and what passed the router. The agent's own word counts
// only as an answer to a client; that it closed something is not believed.
//
// Judging and rendering are pure. The package takes no part in the agent's work
// and is not linked by it; it knows the agent by its command line alone.
//
// Nothing is left behind: namespaces have no names, processes end with the demo
// however that ends, and a janitor process removes cgroups and files after a
// demo that was killed.
//
// Privileges: root, as for the agent itself (see package loader), and what
// package lab needs. Kernel: Linux 5.10 with veth and nf_tables.
//
// Goroutines: Run may be called once at a time. Client, Peer and Janitor are the
// main functions of processes of their own.
package demo
