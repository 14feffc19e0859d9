// SPDX-License-Identifier: Apache-2.0

// Package report is the client for applications: it tells the sockhealth agent
// of this node that a call timed out on one of the application's own TCP
// connections, and returns what the agent made of that connection.
//
// There are two ways in. Client.Report sends one report and waits for the verdict;
// Client.Submit does not wait, and Client.Result fetches it later. Transport wraps
// an http.RoundTripper and reports by itself when a request gets no answer in
// time.
//
// A report asks, it does not order: the agent closes a connection only where
// the evidence from that very connection condemns it. Reports concern TCP
// sockets of the calling process's network namespace and user; who calls is
// told to the agent by the kernel, so there is nothing to configure but the
// path of the Unix socket, and no privilege is needed.
//
// What can be judged is what the agent's policy names. Connections that are older
// than the agent are adopted when it starts, where its kernel lets it (Linux 5.15)
// and its policy does not say otherwise; else they are "unmanaged" ("older"), and
// reports about them change nothing. After a restart of the agent what it had
// managed before still is. A connection of Multipath TCP is "unknown" ("mptcp"):
// its subflow is not the whole of it.
//
// The package never opens, writes to or closes a connection to a peer. On other
// systems than Linux it builds, and reporting does nothing.
//
// Everything may be used from several goroutines at once. A Client starts none
// that outlives its call. A Transport starts one a request, and keeps those of
// timed-out requests for a bounded time and in bounded number; Close ends them.
package report
