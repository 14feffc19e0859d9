// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"github.com/google/nftables"

	"github.com/sockhealth/sockhealth/internal/netns"
)

// maxServers keeps the third byte of the servers' networks below 256.
const maxServers = 200

// Options of New. The zero value is one client, one router, one server.
type Options struct {
	// Servers is the number of hosts behind the router, 0 meaning 1. Server i
	// is 10.91.(2+i).2 and fd91:0:0:(2+i)::2.
	Servers int
	// ClientAddrs and ServerAddrs are further addresses of the client and of
	// server 0, inside their networks (10.91.1.0/24 and fd91:0:0:1::/64,
	// 10.91.2.0/24 and fd91:0:0:2::/64), with hosts from 3 up.
	ClientAddrs, ServerAddrs []netip.Addr
}

// Host is an end of the lab.
type Host struct {
	NS           *netns.NS
	Addr4, Addr6 netip.Addr
}

// Lab is a running bed. It owns its namespaces: close them through Close.
type Lab struct {
	Client, Router, Server *netns.NS
	// Servers are all hosts behind the router; Server and the addresses below
	// are those of the first.
	Servers                  []Host
	ClientAddr4, ClientAddr6 netip.Addr
	ServerAddr4, ServerAddr6 netip.Addr

	rules *ruleset
	local struct {
		sync.Mutex
		rules *ruleset // the client's own; nil: none was needed
	}
	owned []*netns.NS
}

// New builds the lab and returns when every link is up. A failed construction
// leaves nothing behind.
func New(opts Options) (l *Lab, err error) {
	if opts.Servers == 0 {
		opts.Servers = 1
	}
	if opts.Servers < 1 || opts.Servers > maxServers {
		return nil, fmt.Errorf("build lab: %d servers, want 1 to %d", opts.Servers, maxServers)
	}
	l = &Lab{}
	if err := l.build(opts); err != nil {
		return nil, errors.Join(fmt.Errorf("build lab: %w", err), l.Close())
	}
	return l, nil
}

func (l *Lab) build(opts Options) (err error) {
	if l.Router, err = l.namespace(); err != nil {
		return err
	}
	if err := forward(l.Router); err != nil {
		return fmt.Errorf("make router: %w", err)
	}
	client, err := l.host(1, opts.ClientAddrs)
	if err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	l.Client, l.ClientAddr4, l.ClientAddr6 = client.NS, client.Addr4, client.Addr6
	extra := opts.ServerAddrs
	for i := range opts.Servers {
		server, err := l.host(byte(2+i), extra)
		if err != nil {
			return fmt.Errorf("make server %d: %w", i, err)
		}
		l.Servers, extra = append(l.Servers, server), nil
	}
	l.Server, l.ServerAddr4, l.ServerAddr6 = l.Servers[0].NS, l.Servers[0].Addr4, l.Servers[0].Addr6
	if l.rules, err = newRuleset(l.Router, nftables.ChainHookForward); err != nil {
		return fmt.Errorf("make router's rules: %w", err)
	}
	return nil
}

// namespace makes one that Close lets go of.
func (l *Lab) namespace() (*netns.NS, error) {
	ns, err := netns.New()
	if err != nil {
		return nil, err
	}
	l.owned = append(l.owned, ns)
	return ns, nil
}

// host makes the host of network net and its link to the router.
func (l *Lab) host(net byte, extra []netip.Addr) (Host, error) {
	ns, err := l.namespace()
	if err != nil {
		return Host{}, err
	}
	n := network{net}
	if err := n.join(l.Router, ns, extra); err != nil {
		return Host{}, err
	}
	return Host{NS: ns, Addr4: n.addr4(2), Addr6: n.addr6(2)}, nil
}

// Close lets go of everything. The kernel removes links, rules and namespaces
// once the last socket and process in them is gone. A second Close does nothing;
// faults and counters return os.ErrClosed from then on.
func (l *Lab) Close() error {
	var errs []error
	if l.rules != nil {
		errs = append(errs, l.rules.close())
	}
	if l.local.rules != nil {
		errs = append(errs, l.local.rules.close())
	}
	for _, ns := range l.owned {
		errs = append(errs, ns.Close())
	}
	l.owned = nil
	return errors.Join(errs...)
}
