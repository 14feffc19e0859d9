// SPDX-License-Identifier: Apache-2.0

// Package api serves the agent's two Unix sockets, and holds the client of the
// second one for the command line.
//
// report.sock is for applications (POST /v1/reports, GET /v1/judgements/ID; the
// client is package report). Who calls comes from the kernel and never from the
// body: the network namespace of the caller's own end of the socket, its peer
// credentials, and whether it owns the user namespace of that namespace. Which
// sockets that caller may hear about is decided by the agent, not here. What
// reports cost is bounded here, by a token bucket for each user and namespace.
// admin.sock is for root: it reads (status, sockets, events, policy), has one
// socket probed and the policy file reloaded, and takes reports about every
// socket of the caller's namespace. Root of a container is not that: it is heard from
// the agent's own pid namespace alone. Both stand in a run directory that one agent
// holds at a time, report.sock in a directory of its own there, which is fit for
// containers. docs/api.md has every path, field and limit.
//
// The package judges nothing and looks at no connection. It takes part in no
// protocol but HTTP/1.1.
//
// Privileges: asking for a caller's namespace needs CAP_NET_ADMIN over it; the
// rest needs the right to write to the run directory. Kernel floor: 4.11
// (SIOCGSKNS, NS_GET_OWNER_UID).
//
// Goroutines: net/http runs one a connection, and their number is bounded (see
// Server); a judgement that nobody waits for has one more, at most 4,096 at a
// time, which Shutdown ends. Judge, Admin and EventSource are called from many at
// once.
package api
