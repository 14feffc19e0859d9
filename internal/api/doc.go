// SPDX-License-Identifier: Apache-2.0

// Package api serves the agent's two Unix sockets, and holds the client of the
// second one for the command line.
//
// report.sock is for applications (POST /v1/reports; the client is package
// report). Who calls comes from the kernel and never from the body: the network
// namespace of the caller's own end of the socket and its peer credentials.
// Which sockets that caller may hear about is decided by the agent, not here.
// admin.sock is for root (GET /v1/status, /v1/sockets, /v1/policy) and only
// reads. Both stand in a run directory that one agent holds at a time.
//
// The package judges nothing and looks at no connection. It takes part in no
// protocol but HTTP/1.1.
//
// Privileges: asking for a caller's namespace needs CAP_NET_ADMIN over it; the
// rest needs the right to write to the run directory. Kernel floor: 4.9
// (SIOCGSKNS).
//
// Goroutines: net/http runs one a connection, and their number is bounded (see
// Server). Judge and Admin are called from many at once.
package api
