// SPDX-License-Identifier: Apache-2.0

// Package conn describes one TCP connection as the rest of sockhealth speaks
// of it: an ID that names exactly one socket, and a Snapshot of what the kernel
// knew about it at one moment.
//
// It only describes. Reading a socket is package sockets, judging it is package
// verdict. It imports nothing of sockhealth, needs no privilege, and its values
// may be shared between goroutines as long as nobody writes to them.
package conn
