// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"errors"
	"log/slog"
	"net/http"

	"github.com/sockhealth/sockhealth/internal/agent"
	"github.com/sockhealth/sockhealth/internal/conn"
)

// Paths of admin.sock, besides those of the reports.
const (
	statusPath    = "/v1/status"
	socketsPath   = "/v1/sockets"
	explainPath   = "/v1/sockets/explain"
	probePath     = "/v1/sockets/probe"
	unmanagedPath = "/v1/sockets/unmanaged"
	policyPath    = "/v1/policy"
	reloadPath    = "/v1/reload"
	eventsPath    = "/v1/events"
)

// Admin answers the questions of the admin socket. Each may be asked from many
// goroutines at once.
//
// Explain and Probe are given the part of an ID that the client knows: Local or
// Cookie, and perhaps Remote and Netns. Their errors wrap ErrNoSocket where no
// socket of the namespaces served is all that, and ErrAmbiguous where several
// are.
type Admin interface {
	// Status returns the state of the agent; Schema and Health are set here.
	Status(ctx context.Context) (Status, error)
	// Sockets returns the managed sockets of all namespaces served.
	Sockets(ctx context.Context) ([]Socket, error)
	// Unmanaged returns the sockets that a policy names and that are not bounded
	// as it wants. With an error some may be missing.
	Unmanaged(ctx context.Context) ([]UnmanagedSocket, error)
	// Explain says all about one socket; Schema is set here.
	Explain(ctx context.Context, id conn.ID) (Explanation, error)
	// Probe judges one socket as if a call had just been sent on it, and
	// closes nothing.
	Probe(ctx context.Context, id conn.ID) (agent.Result, error)
	// Policies names the entries of the policy in force.
	Policies() []string
	// Policy returns the policy in force; Schema is set here.
	Policy(ctx context.Context) (Policy, error)
	// Reload reads the policy file again and puts it in force. With an error
	// the one in force stays. It wraps a *policy.Errors where the file is not
	// right, policy.ErrTooLarge or an *fs.PathError where it cannot be read.
	Reload(ctx context.Context) (PolicyFile, error)
}

// NewAdmin returns the server of admin.sock. Reports are judged as root's: about
// every socket of the caller's network namespace, the host's too.
func NewAdmin(a Admin, events EventSource, j Judge, log *slog.Logger) *Server {
	later := newBackground()
	h := &admin{
		of: a, events: events, later: later, log: log,
		reports: &reports{judge: j, later: later, kept: newJudgements(later), owners: owners{all: true}, log: log},
	}
	s := newServer(h, later, log)
	s.http.ConnContext = withPlace
	return s
}

// admin is the handler of admin.sock.
type admin struct {
	of      Admin
	events  EventSource
	reports *reports
	later   *background
	log     *slog.Logger
}

func (h *admin) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !answersTo(w, peerOf(r)) {
		return
	}
	switch r.URL.Path {
	case statusPath:
		h.ask(w, r, h.status)
	case socketsPath:
		h.sockets(w, r)
	case unmanagedPath:
		h.unmanaged(w, r)
	case policyPath:
		h.ask(w, r, h.policy)
	case explainPath:
		h.explain(w, r)
	case probePath:
		h.probe(w, r)
	case reloadPath:
		h.reload(w, r)
	case eventsPath:
		h.stream(w, r)
	default:
		if h.reports.serves(r.URL.Path) {
			h.reports.serve(w, r)
			return
		}
		refuse(w, http.StatusNotFound, "no such path %s: there are GET %s, %s, %s, %s, %s and %s, POST %s and %s, and the paths of the report socket",
			quote(r.URL.Path), statusPath, socketsPath, explainPath, unmanagedPath, policyPath, eventsPath, probePath, reloadPath)
	}
}

// ask answers a question that takes no parameters.
func (h *admin) ask(w http.ResponseWriter, r *http.Request, question func(context.Context) (any, error)) {
	if !plain(w, r) {
		return
	}
	value, err := question(r.Context())
	h.answer(w, r, value, err)
}

// plain reports whether it is a GET request without parameters, and answers if
// not.
func plain(w http.ResponseWriter, r *http.Request) bool {
	if !onlyMethod(w, r, http.MethodGet) {
		return false
	}
	_, ok := query(w, r)
	if ok {
		_, ok = wholeBody(w, r)
	}
	return ok
}

// answer answers with a value or the error beside it.
func (h *admin) answer(w http.ResponseWriter, r *http.Request, value any, err error) {
	switch {
	case err == nil:
		answer(w, http.StatusOK, value)
	case r.Context().Err() != nil: // the client went away
	case errors.Is(err, ErrNoSocket):
		refuse(w, http.StatusNotFound, "%v", err)
	case errors.Is(err, ErrAmbiguous):
		refuse(w, http.StatusConflict, "%v", err)
	case errors.Is(err, agent.ErrBusy), errors.Is(err, agent.ErrStopped):
		busy(w, "%v", err)
	case errors.Is(err, agent.ErrForbidden):
		refuse(w, http.StatusForbidden, "%v [start it with --netns all, or with that namespace among its paths]", err)
	default: // for root: the whole truth
		h.log.Error("answer admin", "path", r.URL.Path, "err", err)
		refuse(w, http.StatusInternalServerError, "%v", err)
	}
}

func (h *admin) status(ctx context.Context) (any, error) {
	s, err := h.of.Status(ctx)
	s.Schema, s.Health = Schema, HealthOK
	if len(s.Problems) > 0 || s.Policy.Error != "" {
		s.Health = HealthDegraded
	}
	// Lists are lists, also when they are empty.
	for _, list := range []*[]string{&s.Problems, &s.Programs, &s.Netns} {
		if *list == nil {
			*list = []string{}
		}
	}
	if s.Peers == nil {
		s.Peers = []PolicyStatus{}
	}
	return s, err
}

func (h *admin) policy(ctx context.Context) (any, error) {
	p, err := h.of.Policy(ctx)
	p.Schema = Schema
	return p, err
}

func (h *admin) explain(w http.ResponseWriter, r *http.Request) {
	if !onlyMethod(w, r, http.MethodGet) {
		return
	}
	id, ok := socketOf(w, r)
	if !ok {
		return
	}
	if _, ok := wholeBody(w, r); !ok {
		return
	}
	x, err := h.of.Explain(r.Context(), id)
	x.Schema = Schema
	h.answer(w, r, x, err)
}

func (h *admin) probe(w http.ResponseWriter, r *http.Request) {
	if !onlyMethod(w, r, http.MethodPost) {
		return
	}
	if _, ok := query(w, r); !ok {
		return
	}
	id, ok := readBody(w, r, parseSocket)
	if !ok {
		return
	}
	found, err := h.of.Probe(r.Context(), id)
	h.answer(w, r, Probed{Schema: Schema, Result: result(&found)}, err)
}

func (h *admin) reload(w http.ResponseWriter, r *http.Request) {
	if !onlyMethod(w, r, http.MethodPost) {
		return
	}
	if _, ok := query(w, r); !ok {
		return
	}
	if _, ok := wholeBody(w, r); !ok {
		return
	}
	file, err := h.of.Reload(r.Context())
	if wrong := refusedFile(err); wrong != nil {
		answer(w, http.StatusUnprocessableEntity, newRefused(wrong))
		return
	}
	h.answer(w, r, Reloaded{Schema: Schema, PolicyFile: file}, err)
}
