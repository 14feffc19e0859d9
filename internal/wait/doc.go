// SPDX-License-Identifier: Apache-2.0

// Package wait bounds the wait for work that nobody can end, such as a walk over sockets
// that one which an application keeps locked holds up.
//
// It ends no work, and starts none. It needs no privilege; its functions may be called
// from any goroutine.
package wait
