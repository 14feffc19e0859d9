// SPDX-License-Identifier: Apache-2.0

// Package policy reads the policy file: which peers a node has, and how the
// connections to them are bounded and judged.
//
// It parses strictly and reports every mistake at once with its file, line and
// column; it compiles the peers into the prefix lists that the BPF programs
// look up, answers the same look-up in Go, and explains in seconds what a
// connection is given.
//
// It is pure: apart from Load, which reads one file, nothing here touches the
// system. It needs no privilege and no kernel feature, does not watch files
// and puts nothing into the kernel (package loader does). A Policy never
// changes after Parse and may be shared between goroutines.
package policy
