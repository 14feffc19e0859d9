// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/sockhealth/sockhealth/internal/agent"
	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/report"
)

const (
	reportsPath    = "/v1/reports"
	judgementsPath = "/v1/judgements/" // and an id
)

// Judge judges the sockets that a report names.
type Judge interface {
	// Judge returns one result a socket; a socket that the caller does not
	// hold, or may not hear of, is gone, and with a peer alone left out. It
	// returns when the judgement is in or ctx ends, and uses the caller's
	// namespace no longer. An error wraps agent.ErrBusy where the report may
	// be sent again a little later, agent.ErrStopped where the agent is about
	// to end, and agent.ErrForbidden where it does not serve the caller's
	// namespace.
	Judge(ctx context.Context, r agent.Report) ([]agent.Result, error)
}

// NewReports returns the server of report.sock. It remembers which network
// namespaces are the host's: call it from where the agent lives.
func NewReports(j Judge, log *slog.Logger) *Server {
	later := newBackground()
	h := &reports{judge: j, later: later, kept: newJudgements(later), buckets: newBuckets(conn.Now), log: log}
	h.owners.learn(log)
	return newServer(h, later, log)
}

// reports is the handler of report.sock, and of the reports on admin.sock.
type reports struct {
	judge Judge
	later *background
	kept  *judgements
	// buckets bound what callers cost; nil: they are root's.
	buckets *buckets
	owners  owners
	log     *slog.Logger // errors that are none of the caller's business
}

func (h *reports) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !h.serves(r.URL.Path) {
		refuse(w, http.StatusNotFound, "no such path %s: reports go to POST %s, judgements come from GET %sID",
			quote(r.URL.Path), reportsPath, judgementsPath)
		return
	}
	h.serve(w, r)
}

// serves reports whether a path is one of its own.
func (h *reports) serves(path string) bool {
	return path == reportsPath || strings.HasPrefix(path, judgementsPath)
}

// serve answers a request for one of its paths.
func (h *reports) serve(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == reportsPath {
		h.report(w, r)
		return
	}
	h.judgement(w, r, strings.TrimPrefix(r.URL.Path, judgementsPath))
}

// report answers POST /v1/reports.
func (h *reports) report(w http.ResponseWriter, r *http.Request) {
	arrived := conn.Now()
	if !onlyMethod(w, r, http.MethodPost) {
		return
	}
	wait, ok := waitOf(w, r)
	if !ok {
		return
	}
	b, ok := readBody(w, r, parseReport)
	if !ok {
		return
	}
	caller, ok := h.caller(w, r)
	if !ok {
		return
	}
	if !h.afford(w, caller, &b) {
		_ = caller.NS.Close()
		return
	}
	asked := agent.Report{Caller: caller, Local: b.local, Peer: b.peer, Cookie: b.cookie, Sent: arrived - b.elapsed}
	if wait < 0 {
		defer caller.NS.Close()
		results, err := h.judge.Judge(r.Context(), asked)
		if err != nil {
			h.refuseReport(w, r, err)
			return
		}
		answer(w, http.StatusOK, response(results))
		return
	}
	h.submit(w, r, asked, wait)
}

// submit has a report judged in the background and waits that long for it.
func (h *reports) submit(w http.ResponseWriter, r *http.Request, asked agent.Report, wait time.Duration) {
	ns := asked.Caller.NS // the judgement's from now on
	j, err := h.kept.start(identityOf(asked.Caller), func(ctx context.Context) ([]agent.Result, error) {
		defer ns.Close()
		return h.judge.Judge(ctx, asked)
	})
	if err != nil {
		_ = ns.Close()
		h.refuseReport(w, r, err)
		return
	}
	if wait > 0 && h.await(r, j, wait) {
		h.kept.drop(j) // nobody has heard of its id
		h.fetch(w, r, j)
		return
	}
	answer(w, http.StatusAccepted, report.Pending{Judgement: j.id})
}

// judgement answers GET /v1/judgements/ID.
func (h *reports) judgement(w http.ResponseWriter, r *http.Request, id string) {
	if !onlyMethod(w, r, http.MethodGet) {
		return
	}
	wait, ok := waitOf(w, r)
	if !ok {
		return
	}
	if _, ok := wholeBody(w, r); !ok {
		return
	}
	caller, ok := h.caller(w, r)
	if !ok {
		return
	}
	whose := identityOf(caller)
	_ = caller.NS.Close()
	j := h.kept.find(whose, id)
	switch {
	case j == nil:
		refuse(w, http.StatusNotFound,
			"no such judgement: its id is known to who reported alone, and for %d s after the answer is in", int(keepFor.Seconds()))
	case h.await(r, j, wait):
		h.fetch(w, r, j)
	case h.later.ctx.Err() != nil:
		h.refuseReport(w, r, agent.ErrStopped)
	default:
		answer(w, http.StatusAccepted, report.Pending{Judgement: j.id})
	}
}

// await waits for a judgement and reports whether it is in.
func (h *reports) await(r *http.Request, j *judgement, wait time.Duration) bool {
	timer := time.NewTimer(max(wait, 0))
	defer timer.Stop()
	select {
	case <-j.done:
		return true
	case <-timer.C:
	case <-r.Context().Done():
	case <-h.later.ctx.Done():
	}
	select { // a tie goes to the answer
	case <-j.done:
		return true
	default:
		return false
	}
}

// fetch answers with a judgement that is in.
func (h *reports) fetch(w http.ResponseWriter, r *http.Request, j *judgement) {
	if j.err != nil {
		h.refuseReport(w, r, j.err)
		return
	}
	write(w, http.StatusOK, j.body)
}

// afford takes what the report costs from the caller's bucket, and answers
// where that is empty.
func (h *reports) afford(w http.ResponseWriter, c agent.Caller, b *body) bool {
	cost := float64(costSocket)
	if !b.local.IsValid() || !b.peer.IsValid() {
		cost = costPeer
	}
	if h.buckets == nil || h.buckets.take(identityOf(c), cost) {
		return true
	}
	tooMany(w, "too many reports: %d a second and %d at once are heard of one user in one network namespace, "+
		`and one without both "local" and "peer" counts as %d; try again in a second`, reportsPerSecond, reportsAtOnce, costPeer)
	return false
}

// refuseReport answers a report that was not judged.
func (h *reports) refuseReport(w http.ResponseWriter, r *http.Request, err error) {
	switch {
	case r.Context().Err() != nil: // the caller went away
	case errors.Is(err, agent.ErrBusy):
		busy(w, "the agent is busy with other reports: try again in a second")
	case errors.Is(err, agent.ErrStopped), h.later.ctx.Err() != nil:
		busy(w, "the agent is stopping: try again when it is back")
	case errors.Is(err, errNotKept):
		busy(w, "the answer is in but too long to be kept beside the others: %d MiB are kept for a caller, %d MiB in all; report again without wait",
			maxCallerKept>>20, maxKept>>20)
	case errors.Is(err, errManyCallerIDs):
		tooMany(w, "too many judgements: %d are kept of one user in one network namespace; try again in a second", maxCallerIDs)
	case errors.Is(err, errManyIDs):
		tooMany(w, "too many judgements: %d are kept in all; try again in a second", maxIDs)
	case errors.Is(err, agent.ErrForbidden):
		refuse(w, http.StatusForbidden, "the agent does not serve your network namespace: its --netns does not cover it [start it with --netns all, or with this namespace among its paths]")
	default:
		peer := peerOf(r)
		h.log.Error("judge report", "uid", peer.uid, "pid", peer.pid, "err", err)
		refuse(w, http.StatusInternalServerError, "the agent could not judge the socket: see its log")
	}
}

// identityOf returns on whose account a caller's reports go.
func identityOf(c agent.Caller) identity { return identity{c.UID, c.NS.Inode()} }
