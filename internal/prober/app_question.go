// SPDX-License-Identifier: Apache-2.0

package prober

import (
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/sockhealth/sockhealth/internal/netns"
	"github.com/sockhealth/sockhealth/internal/policy"
)

// question is what may be asked once for all who want to know: an application
// probe of an address from a namespace. Probes of two policies that read the
// same are the same, whatever they make of the outcome.
type question struct {
	netns   uint32
	to      netip.AddrPort
	kind    policy.AppKind
	text    string // the path, the service or what is sent
	timeout time.Duration
}

// questionOf returns the question that p asks about a peer.
func questionOf(ns *netns.NS, peer netip.AddrPort, p *policy.AppProbe) question {
	q := question{netns: ns.Inode(), kind: p.Kind, timeout: p.Timeout}
	port := p.Port
	if port == 0 {
		port = peer.Port()
	}
	q.to = netip.AddrPortFrom(peer.Addr().Unmap().WithZone(""), port)
	switch p.Kind {
	case policy.AppHTTP:
		q.text = p.Path
	case policy.AppGRPC:
		q.text = p.Service
	case policy.AppSend:
		q.text = string(p.Send)
	}
	return q
}

// network returns the network of package net that the address belongs to.
func (q question) network() string {
	if q.to.Addr().Is4() {
		return "tcp4"
	}
	return "tcp6"
}

// talk puts the question on a connection and reads what comes. That a byte came
// is seen elsewhere; talk returns where its manners demand no more of it, or
// with an error that says how it ended.
type talk func(c net.Conn) error

// talk returns how the question is put.
func (q question) talk(userAgent string) talk {
	switch q.kind {
	case policy.AppHTTP:
		return talkHTTP(q, userAgent)
	case policy.AppGRPC:
		return talkGRPC(q, userAgent)
	case policy.AppSend:
		return talkSend(q)
	}
	return func(net.Conn) error { return fmt.Errorf("ask %s: unknown kind %q", q.to, q.kind) }
}
