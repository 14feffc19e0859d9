// SPDX-License-Identifier: Apache-2.0

// Package spool writes lines to something that may be stuck, such as a pipe that
// nobody reads, without anybody waiting for it: lines are kept in memory up to a
// bound, and beyond that dropped and counted.
//
// It is no log: it knows neither levels nor formats. What is kept is lost where the
// process dies without Close.
//
// Privileges: none. Goroutines: one a Writer, which ends after Close as soon as the
// write that it may be in returns; every method may be called from many at once.
package spool
