// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/netns"
	"github.com/sockhealth/sockhealth/internal/policy"
	"github.com/sockhealth/sockhealth/internal/verdict"
	"github.com/sockhealth/sockhealth/internal/wait"
)

// PolicyOf returns the entry of the policy that is in force on a socket, or
// which would be if it opened now beside the reason why none is: one of verdict's
// for Unmanaged.
func (a *Agent) PolicyOf(ns *netns.NS, s *conn.Snapshot) (peer *policy.Peer, unmanaged string) {
	return a.peerOf(a.Kernel.InForce(), ns, s)
}

// managed returns the entry that is in force on a socket by its record, nil: none is.
func managed(force *loader.InForce, s *conn.Snapshot) *policy.Peer {
	if !s.HasRecord {
		return nil
	}
	return force.Peer(s.Record.Policy)
}

// peerOf is PolicyOf under a policy; nil: none is in force.
func (a *Agent) peerOf(force *loader.InForce, ns *netns.NS, s *conn.Snapshot) (*policy.Peer, string) {
	if peer := managed(force, s); peer != nil {
		return peer, ""
	}
	if force != nil {
		peer, _ := force.Policy.Choose(s.Remote, s.Local.Port(), a.directions(force.Policy, ns, s))
		if peer != nil {
			return peer, verdict.ReasonOlder
		}
	}
	return nil, verdict.ReasonNoPolicy
}

// directions returns those that a connection may have. Where its record does not tell,
// the listeners do, who are asked only where the policy names one direction and not the
// other. Where they cannot be asked, or not within walkLimit, it may have either.
func (a *Agent) directions(p *policy.Policy, ns *netns.NS, s *conn.Snapshot) policy.Directions {
	if s.HasRecord && !s.Record.Ambiguous {
		return policy.Directions(s.Record.Direction)
	}
	_, out := p.Match(s.Remote, s.Local.Port(), conn.Outbound)
	_, in := p.Match(s.Remote, s.Local.Port(), conn.Inbound)
	if out == in {
		return policy.Both
	}
	who, err := a.listening(ns)
	if err != nil {
		return policy.Both
	}
	if _, ok := wait.Within(who.known, walkLimit); !ok || who.err != nil {
		return policy.Both
	}
	return who.opened(&s.ID)
}

// listening is one question for the listeners of a namespace, shared by all who ask
// meanwhile. opened and err are settled when known closes.
type listening struct {
	known  chan struct{}
	opened func(*conn.ID) policy.Directions
	err    error
}

// listening returns the question that is under way about a namespace, or asks.
func (a *Agent) listening(ns *netns.NS) (*listening, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	k := ns.Inode()
	if q := a.asking[k]; q != nil {
		return q, nil
	}
	own, err := a.handles.hold(ns) // the question may outlive whoever asked
	if err != nil {
		return nil, err
	}
	q := &listening{known: make(chan struct{})}
	a.asking[k] = q
	go func() {
		defer a.handles.drop(own)
		q.opened, q.err = a.Sockets.Directions(own)
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.asking, k)
		close(q.known)
	}()
	return q, nil
}
