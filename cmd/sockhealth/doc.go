// SPDX-License-Identifier: Apache-2.0

// Command sockhealth is the agent and the tool to ask it. Its commands parse
// flags, wire the packages below internal/ together and print; what is decided
// is decided there. docs/cli.md describes every command, flag and exit code.
//
// Privileges: run and demo need root (or the capabilities that loader.Require
// names), status and sockets need root, the others nothing. Kernel: that of
// package loader for run and demo.
//
// Goroutines: run starts those of its servers and of the event stream, and ends
// them in reverse order; every other command works in the first goroutine.
package main
