// SPDX-License-Identifier: Apache-2.0

// Command sockhealth is the agent and the tool to ask it. Its commands parse
// flags, wire the packages below internal/ together and print; what is decided
// is decided there. docs/cli.md describes every command, flag and exit code.
//
// Privileges: run and demo need root (or the capabilities that loader.Require
// names), doctor finds out what is missing of that, status, sockets, events and
// reload need root, the others nothing. Kernel: that of package loader for run and
// demo.
//
// Goroutines: run starts those of its servers, of the event stream and of the
// watch of the policy file, and ends them in reverse order; every other command works in the first goroutine.
package main
