// SPDX-License-Identifier: Apache-2.0

// Package adopt brings every connection of the node in line with the policy in
// force, and keeps it there: those that are older than the agent or were opened
// outside its cgroup, those whose policy has changed, those that no policy names
// any more, and those whose options were changed behind the programs.
//
// What is done to one connection, and when, the program decides that walks over a
// namespace (loader.Programs.Adopt); a pass may be repeated at will. This package
// decides which namespace has its turn, paces what would set off probes, and
// counts what the passes met: how many connections should be managed, and how many
// are.
//
// It judges nothing, and closes nothing.
//
// Privileges and kernel: those of loader.Programs.Adopt; where the kernel cannot
// adopt, Run ends at once and says so. Goroutines: Run is for one goroutine and
// starts one for each namespace while a pass over it runs; every other method may
// be called from any.
package adopt
