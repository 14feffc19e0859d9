// SPDX-License-Identifier: Apache-2.0

// Package cases is what people rely on, shown from end to end: the agent is a
// process of its own ("sockhealth run"), the connections belong to others, and
// what bounds them is read back from outside.
//
// There is nothing in it but tests. The agent they run is the program that
// SOCKHEALTH_BIN names, or "sockhealth" in the folder of the tests' own program, or
// else one that they build. They need root, Linux 5.10 and what each says beside;
// every namespace, cgroup and bpffs is their own.
package cases
