// SPDX-License-Identifier: Apache-2.0

// Package verdict decides what became of a connection on which a call timed
// out. It is one pure function, Decide: snapshots before and after, probe
// outcome and the moment of the call in, verdict out.
//
// It reads no socket, sends nothing, acts on nothing, knows no clock and has
// no state: everything it needs is in its Input. The log and the events keep that
// as a Basis, from which every decision can be made again.
package verdict
