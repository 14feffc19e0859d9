// SPDX-License-Identifier: Apache-2.0

// Package doctor finds out what this machine gives the agent, by doing each
// thing once: it loads the programs, and looks at, walks to, probes and destroys
// a connection of its own making.
//
// It attaches nothing, needs no running agent, and touches nothing of the host:
// the connection stands in a network namespace made for it, which is gone
// afterwards. It repairs nothing. Of a running agent it makes the same list, on what
// that has loaded and attached: there it does nothing but look.
//
// Privileges: those of the agent; what is missing is found, not demanded. Kernel
// floor: none. It starts no goroutine, and everything runs on the caller's.
package doctor
