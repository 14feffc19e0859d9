// SPDX-License-Identifier: Apache-2.0

// Package demo plays the incidents that sockhealth ends, on this machine and
// with real sockets, and judges what happened by the incidents' own figures.
//
// An incident (pool.go) is a list of runs played side by side. Each run has a
// bed of its own: the namespaces of a lab, a client, a peer and a replacement as
// processes of their own, and where sockhealth plays, a cgroup and an agent
// ("sockhealth run", the same binary). What is judged is what the client
// experienced, and what the kernel says of its connections (inet_diag); the
// agent's own word counts for nothing.
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
