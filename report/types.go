// SPDX-License-Identifier: Apache-2.0

package report

// Request is the body of POST /v1/reports: a call timed out on this socket.
// Local or Cookie names it; Peer may stand beside them and must then agree. Peer
// alone means all of the caller's sockets to it. Unknown fields are refused.
type Request struct {
	// Peer is the address:port the call was sent to, as the socket has it
	// (getpeername). An IPv4-mapped IPv6 address means its IPv4 address.
	Peer string `json:"peer,omitempty"`
	// Local is the socket's own address:port (getsockname).
	Local string `json:"local,omitempty"`
	// Cookie is the socket's SO_COOKIE.
	Cookie uint64 `json:"cookie,omitempty"`
	// ElapsedMS is the age of the call: milliseconds since its request was
	// written, 0 to 3,600,000.
	ElapsedMS int64 `json:"elapsed_ms"`
}

// Response is the answer: one result per socket judged. Where the caller does not
// hold the socket named its verdict is "gone"; a report with Peer alone that
// finds none gets an empty list.
type Response struct {
	Results []Result `json:"results"`
}

// Pending is the answer where the client does not wait for the judgement.
type Pending struct {
	// Judgement is the id to fetch it by. It cannot be guessed, and is good for
	// the user and the network namespace that reported.
	Judgement string `json:"judgement"`
}

// Result is the judgement of one socket.
type Result struct {
	Local  string `json:"local"`
	Peer   string `json:"peer"`
	Cookie uint64 `json:"cookie"`
	// Policy is the entry of the policy file, "" where none names the peer.
	Policy string `json:"policy,omitempty"`
	// Revision is that of the policy file that was in force.
	Revision string `json:"revision,omitempty"`
	// Verdict and Reason are words of closed lists, which docs/api.md explains
	// one by one; later versions may have more. Reason is "" where the verdict
	// says it all.
	Verdict string `json:"verdict"`
	Reason  string `json:"reason,omitempty"`
	// Action is what was done: "none", "closed", "deferred", "observed", "frozen" or
	// "failed".
	Action string `json:"action"`
	// Frozen says why nothing was closed where the action is frozen: "peers_silent"
	// (most peers fell silent at once, so it is this node), "not_all_seen" (not every
	// connection could be looked at to know) or "stopping" (nor was there time to).
	Frozen   string   `json:"frozen,omitempty"`
	Evidence Evidence `json:"evidence"`
}

// Evidence is what the verdict rests on, as of the last look; where the socket
// was gone by then, as of the first. All but DurationMS is zero where no socket
// was found at all.
type Evidence struct {
	// State is the TCP state, "" where no socket was found.
	State string `json:"state,omitempty"`
	// PayloadSinceCall says that payload came after the call was sent.
	PayloadSinceCall bool `json:"payload_since_call"`
	// BytesReceived and BytesAcked are the socket's counters.
	BytesReceived uint64 `json:"bytes_received"`
	BytesAcked    uint64 `json:"bytes_acked"`
	// Unread are bytes that wait in this host's receive queue.
	Unread uint32 `json:"unread,omitempty"`
	// InFlight says that bytes were unacknowledged.
	InFlight bool `json:"in_flight"`
	// Delivery says what became of the request, as far as this host's kernel
	// knows: "no_request" (nothing was sent on the connection since the call),
	// "unacknowledged" (the end of what had been written was not acknowledged),
	// "acknowledged" (all of it was, by the peer's TCP: what its application has
	// done with it nobody knows), or "" where no socket was found.
	Delivery string `json:"delivery,omitempty"`
	// Unacked are bytes of payload written and not acknowledged, Unsent those
	// among them that have not been sent yet.
	Unacked uint32 `json:"unacked,omitempty"`
	Unsent  uint32 `json:"unsent,omitempty"`
	// LastDataMS and LastPacketMS are the ages of the last payload and of the
	// last segment of any kind, in milliseconds.
	LastDataMS   int64 `json:"last_data_ms"`
	LastPacketMS int64 `json:"last_packet_ms"`
	// ProbesSent counts the in-path probes of this judgement; ProbeAnswered
	// says that one was answered.
	ProbesSent    int  `json:"probes_sent"`
	ProbeAnswered bool `json:"probe_answered"`
	// WindowMS is the effective probe window, 0 where no probe was needed.
	WindowMS int64 `json:"window_ms,omitempty"`
	// AppProbe is what became of the application probe: "answered",
	// "no_connection", "silent", or "" where none was made.
	AppProbe string `json:"app_probe,omitempty"`
	// CallMS is the age of the call when the report came in.
	CallMS int64 `json:"call_ms"`
	// DurationMS is the time from the report to this answer.
	DurationMS int64 `json:"duration_ms"`
}

// Error is the body of every answer that is not 2xx.
type Error struct {
	Error string `json:"error"`
}
