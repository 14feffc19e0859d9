// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"log/slog"
	"net/http"
)

// Paths of admin.sock.
const (
	statusPath  = "/v1/status"
	socketsPath = "/v1/sockets"
	policyPath  = "/v1/policy"
)

// Admin answers the questions of the admin socket. Each may be asked from many
// goroutines at once.
type Admin interface {
	// Status returns the state of the agent; Schema and Health are set here.
	Status(ctx context.Context) (Status, error)
	// Sockets returns the managed sockets of all namespaces served.
	Sockets(ctx context.Context) ([]Socket, error)
	// Policy returns the policy in force; Schema is set here.
	Policy(ctx context.Context) (Policy, error)
}

// NewAdmin returns the server of admin.sock.
func NewAdmin(a Admin, log *slog.Logger) *Server {
	return newServer(&admin{of: a, log: log}, log)
}

// admin is the handler of admin.sock.
type admin struct {
	of  Admin
	log *slog.Logger
}

func (h *admin) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// The mode of the socket file says so too, but a file can be copied into
	// a container or given another mode by mistake.
	if uid := peerOf(r).uid; uid != 0 {
		refuse(w, http.StatusForbidden, "the admin socket is for root, you are user %d", uid)
		return
	}
	ask := h.question(r.URL.Path)
	if ask == nil {
		refuse(w, http.StatusNotFound, "no such path %s: there are GET %s, %s and %s",
			quote(r.URL.Path), statusPath, socketsPath, policyPath)
		return
	}
	if !onlyMethod(w, r, http.MethodGet) || !noQuery(w, r) {
		return
	}
	value, err := ask(r.Context())
	switch {
	case err == nil:
		answer(w, http.StatusOK, value)
	case r.Context().Err() == nil: // for root: the whole truth
		h.log.Error("answer admin", "path", r.URL.Path, "err", err)
		refuse(w, http.StatusInternalServerError, "%v", err)
	}
}

// question returns what a path asks for, nil for an unknown one.
func (h *admin) question(path string) func(context.Context) (any, error) {
	switch path {
	case statusPath:
		return h.status
	case socketsPath:
		return h.sockets
	case policyPath:
		return h.policy
	}
	return nil
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

func (h *admin) sockets(ctx context.Context) (any, error) {
	list, err := h.of.Sockets(ctx)
	if list == nil {
		list = []Socket{}
	}
	return Sockets{Schema: Schema, Sockets: list}, err
}

func (h *admin) policy(ctx context.Context) (any, error) {
	p, err := h.of.Policy(ctx)
	p.Schema = Schema
	return p, err
}
