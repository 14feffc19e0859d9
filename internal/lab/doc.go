// SPDX-License-Identifier: Apache-2.0

// Package lab builds the bed on which sockhealth is tried: a client, a router
// and one or more servers, each in a network namespace of its own, with faults
// made on the router, where a real path has them (kernel-facts T14), unless it is the
// client's own that is wanted.
//
//	client 10.91.1.2 -- 10.91.1.1 router 10.91.2.1 -- 10.91.2.2 server 0
//	       fd91:0:0:1::2                 10.91.3.1 -- 10.91.3.2 server 1 ...
//
// The demo of the shipped binary and the privileged tests share it; helpers for
// tests stand in the subpackage labtest. It runs no program and starts no
// process, knows nothing of policies or verdicts, and never touches the
// namespace it is called from: its own have no name and end with the process,
// however that ends. The cgroups it makes do outlive a killed process; the next
// one of that name removes them.
//
// Privileges: root (CAP_SYS_ADMIN and CAP_NET_ADMIN, a writable /proc/sys/net and
// cgroup v2 mount). Kernel floor: 4.19, with veth and nf_tables of the inet
// family.
//
// Goroutines: faults may be made and healed, and counters read, from any
// goroutine; Close comes after all of them.
package lab
