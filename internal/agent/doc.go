// SPDX-License-Identifier: Apache-2.0

// Package agent is the loop: a report comes in, the socket is looked at, probed
// where that does not suffice, looked at again; package verdict decides, and
// what is condemned is looked at once more and closed. It alone polls sockets.
//
// It parses no request, renders no metric and opens no file: packages api,
// metrics and cmd/sockhealth do, around it. It never dials.
//
// Goroutines: one per judgement under way, at most MaxJudgements; one per sweep;
// one that reads the kernel's events. They end with Close. An *Agent may be
// used by many goroutines at the same time. Nothing is kept per socket that is
// not being judged.
package agent
