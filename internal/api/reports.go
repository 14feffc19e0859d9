// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/sockhealth/sockhealth/internal/agent"
	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/netns"
	"github.com/sockhealth/sockhealth/report"
)

const (
	reportsPath = "/v1/reports"
	maxReport   = 64 << 10
)

// Judge judges the sockets that a report names.
type Judge interface {
	// Judge returns one result a socket, none where the caller holds no
	// such socket or may not hear of it. It returns when the judgement is in
	// or ctx ends. An error wraps agent.ErrBusy where the report may be sent
	// again a little later, agent.ErrStopped where the agent is about to end,
	// and agent.ErrForbidden where it does not serve the caller's namespace.
	Judge(ctx context.Context, r agent.Report) ([]agent.Result, error)
}

// NewReports returns the server of report.sock.
func NewReports(j Judge, log *slog.Logger) *Server {
	return newServer(&reports{judge: j, log: log}, log)
}

// reports is the handler of report.sock.
type reports struct {
	judge Judge
	log   *slog.Logger // errors that are none of the caller's business
}

func (h *reports) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	arrived := conn.Now()
	if r.URL.Path != reportsPath {
		refuse(w, http.StatusNotFound, "no such path %s: reports go to POST %s", quote(r.URL.Path), reportsPath)
		return
	}
	if !onlyMethod(w, r, http.MethodPost) || !noQuery(w, r, "wait") {
		return
	}
	b, ok := readReport(w, r)
	if !ok {
		return
	}
	peer := peerOf(r)
	ns, err := netns.Caller(peer)
	if err != nil {
		h.refuseCaller(w, peer, err)
		return
	}
	defer ns.Close()
	results, err := h.judge.Judge(r.Context(), agent.Report{
		Caller: agent.Caller{NS: ns, UID: peer.uid, PID: peer.pid},
		Local:  b.local,
		Peer:   b.peer,
		Cookie: b.cookie,
		Sent:   arrived - b.elapsed,
	})
	if err != nil {
		h.refuseReport(w, r, peer, err)
		return
	}
	answer(w, http.StatusOK, response(results))
}

// readReport reads and decodes the body, and answers where it is at fault.
func readReport(w http.ResponseWriter, r *http.Request) (body, bool) {
	data, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxReport))
	// The server's deadline for the whole request must not end the context
	// while the judgement runs.
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
	var tooLong *http.MaxBytesError
	var timeout net.Error
	switch {
	case errors.As(err, &tooLong):
		refuse(w, http.StatusRequestEntityTooLarge, "the body is over %d KiB: a report is one small JSON object", maxReport>>10)
		return body{}, false
	case errors.As(err, &timeout) && timeout.Timeout():
		refuse(w, http.StatusRequestTimeout, "the body did not come within %s", readWithin)
		return body{}, false
	case err != nil:
		refuse(w, http.StatusBadRequest, "the body cannot be read: %v", err)
		return body{}, false
	}
	b, err := parseReport(data)
	if err != nil {
		refuse(w, http.StatusBadRequest, "%v", err)
		return body{}, false
	}
	return b, true
}

// refuseCaller answers a caller whose namespace the kernel does not tell.
func (h *reports) refuseCaller(w http.ResponseWriter, peer *peerConn, err error) {
	if errors.Is(err, netns.ErrPermission) {
		refuse(w, http.StatusForbidden, "the agent has no rights over your network namespace: it needs CAP_NET_ADMIN there")
		return
	}
	h.log.Error("ask who reports", "uid", peer.uid, "pid", peer.pid, "err", err)
	refuse(w, http.StatusInternalServerError, "the agent could not find out who reports: see its log")
}

// refuseReport answers a report that was not judged.
func (h *reports) refuseReport(w http.ResponseWriter, r *http.Request, peer *peerConn, err error) {
	switch {
	case r.Context().Err() != nil: // the caller went away
	case errors.Is(err, agent.ErrBusy):
		busy(w, "the agent is busy with other reports: try again in a second")
	case errors.Is(err, agent.ErrStopped):
		busy(w, "the agent is stopping: try again when it is back")
	case errors.Is(err, agent.ErrForbidden):
		refuse(w, http.StatusForbidden, "the agent does not serve your network namespace: its --netns does not cover it")
	default:
		h.log.Error("judge report", "uid", peer.uid, "pid", peer.pid, "err", err)
		refuse(w, http.StatusInternalServerError, "the agent could not judge the socket: see its log")
	}
}

// response puts the results into the words of the API.
func response(results []agent.Result) report.Response {
	out := report.Response{Results: make([]report.Result, 0, len(results))}
	for i := range results {
		out.Results = append(out.Results, result(&results[i]))
	}
	return out
}

func result(r *agent.Result) report.Result {
	e := &r.Evidence
	return report.Result{
		Local:   addrText(r.ID.Local),
		Peer:    addrText(r.ID.Remote),
		Cookie:  r.ID.Cookie,
		Policy:  r.Policy,
		Verdict: string(r.Verdict),
		Reason:  r.Reason,
		Action:  string(r.Action),
		Evidence: report.Evidence{
			State:            stateText(e.State),
			PayloadSinceCall: e.PayloadSinceCall,
			BytesReceived:    e.BytesReceived,
			BytesAcked:       e.BytesAcked,
			Unread:           e.Unread,
			InFlight:         e.InFlight,
			LastDataMS:       e.DataAge.Milliseconds(),
			LastPacketMS:     e.PacketAge.Milliseconds(),
			ProbesSent:       e.ProbesSent,
			ProbeAnswered:    e.ProbeAnswered,
			WindowMS:         e.Window.Milliseconds(),
			CallMS:           e.CallAge.Milliseconds(),
			DurationMS:       r.Duration.Milliseconds(),
		},
	}
}

// addrText returns "" for an address that is not known.
func addrText(ap netip.AddrPort) string {
	if !ap.IsValid() {
		return ""
	}
	return ap.String()
}

// stateText returns "" for the state of a socket that was not found.
func stateText(s conn.State) string {
	if s == 0 {
		return ""
	}
	return s.String()
}

// peerOf returns the connection a request came by.
func peerOf(r *http.Request) *peerConn {
	p, ok := r.Context().Value(peerKey{}).(*peerConn)
	if !ok {
		panic(fmt.Sprintf("request by %s without its connection", r.RemoteAddr)) // newServer puts it there
	}
	return p
}
