// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/netns"
	"github.com/sockhealth/sockhealth/internal/policy"
	"github.com/sockhealth/sockhealth/internal/verdict"
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
	free, ok := a.place(ns.Inode())
	if !ok {
		return policy.Both
	}
	id, told := s.ID, policy.Both // nobody's but fn's until it has ended
	if a.bounded(ns, free, func(ns *netns.NS) (err error) {
		told, err = a.Sockets.Directions(ns, &id)
		return err
	}) != nil {
		return policy.Both
	}
	return told
}
