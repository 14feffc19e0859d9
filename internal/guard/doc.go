// SPDX-License-Identifier: Apache-2.0

// Package guard keeps TCP_USER_TIMEOUT from ending connections whose peer is alive
// and does not read: such a peer keeps its window shut and answers the kernel's
// probes, and the kernel counts the user timeout from the first of them all the same
// (kernel-facts L1).
//
// What is done to one connection, and when, the program decides that walks over a
// namespace (loader.Programs.Guard). This package sees to it that a walk comes every
// third of the shortest user timeout in force, wherever a survey of the records found
// a window shut, or room left of a judgement's keepalives (kernel-facts T18), and counts
// what is guarded. Where there is neither the survey is all there is.
//
// It judges nothing, and closes nothing. When it stops, guarded connections keep the
// user timeout that they have, which is finite; the next start goes on with them.
//
// Privileges and kernel: those of loader.Programs.Guard; where the kernel cannot
// guard, Run ends at once and says so. Goroutines: Run is for one goroutine and starts
// one for each namespace while a pass over it runs; every other method may be called
// from any.
package guard
