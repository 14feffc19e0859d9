// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"bufio"
	"errors"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sockhealth/sockhealth/internal/conn"
)

// Parse gives a policy or errors with places, never both; and a policy's
// compiled form, its look-up and the definition agree at every prefix's edge.
func FuzzParse(f *testing.F) {
	files, err := filepath.Glob("testdata/refused/*.yaml")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range append(files, "example.yaml") {
		b, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte(head + `  - {name: a, cidrs: ["::/0", 10.0.0.0/8], except: [10.1.0.0/16], ports: [1, 5-9], direction: inbound}`))
	f.Add([]byte(head + `  - {name: a, cidrs: [10.0.0.0/8], app_probe: {send: {data: "PING\r\n", port: 1}, on_hung: none}, action: observe}`))
	f.Add([]byte(head + `  - {name: a, cidrs: [10.0.0.0/8], app_probe: {send: {hex: "00 ff"}, timeout: 1m}, close_silent_after: 24h, silence: 1m}`))
	f.Add([]byte(head + `  - {name: a, cidrs: [10.0.0.0/8], app_probe: {grpc: {service: a.B}}, app_override: allow}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := Parse("fuzz.yaml", b)
		if err == nil {
			consistent(t, p)
			return
		}
		var all *Errors
		if p != nil || !errors.As(err, &all) || len(all.List) == 0 {
			t.Fatalf("policy %v with error %v", p, err)
		}
		for i, one := range all.List {
			if one.Line < 1 || one.Column < 1 || one.Message == "" || i > 0 && one.Line < all.List[i-1].Line {
				t.Fatalf("error %d of %v", i, err)
			}
		}
	})
}

func consistent(t *testing.T, p *Policy) {
	t.Helper()
	if p == nil || len(p.Peers) == 0 || len(p.Peers) > MaxPeers || len(p.Revision) != 12 {
		t.Fatalf("policy %+v", p)
	}
	prefixes := p.Compile()
	if len(prefixes) > MaxPrefixes {
		t.Fatalf("%d prefixes", len(prefixes))
	}
	for i, one := range prefixes {
		if len(one.Rules) > MaxRules || one.Prefix != one.Prefix.Masked() || one.Prefix.Addr().Is4In6() {
			t.Fatalf("prefix %+v", one)
		}
		if i >= 20 { // enough; the definition is slow
			continue
		}
		for _, r := range append(one.Rules, Rule{PortLo: 7, PortHi: 7}) {
			for _, port := range []uint16{r.PortLo - 1, r.PortLo, r.PortHi, r.PortHi + 1} {
				remote := netip.AddrPortFrom(one.Prefix.Addr(), port)
				agree(t, p, remote, 1, conn.Outbound)
				agree(t, p, remote, port, conn.Inbound)
				_ = p.Explain(remote).String()
			}
		}
	}
	for _, peer := range p.Peers {
		o := peer.Options
		if !o.KeepAlive || o.UserTimeout <= 0 || o.UserTimeout > maxUserTimeout || o.Count < 1 || o.Count > maxCount ||
			o.Idle <= 0 || o.Idle > maxKeepalive || o.Interval <= 0 || o.Interval > maxKeepalive ||
			peer.Probe.Attempts < 1 || peer.Directions&^Both != 0 || peer.Directions == 0 || len(peer.CIDRs) == 0 {
			t.Fatalf("peer %+v", peer)
		}
		if peer.Override > Allow || peer.CloseSilentAfter != 0 && peer.CloseSilentAfter < peer.Probe.Window || peer.CloseSilentAfter > maxSilent {
			t.Fatalf("peer %+v", peer)
		}
		if peer.Silence != 0 && (peer.Silence < minSilence || peer.Silence > maxSilent || peer.Figures().SilenceBound <= peer.Silence) {
			t.Fatalf("peer %+v", peer)
		}
		if peer.AppProbe != nil && !askable(peer.AppProbe) {
			t.Fatalf("application probe %+v", peer.AppProbe)
		}
	}
}

// askable reports whether a prober can ask it: one kind, and its fields alone.
func askable(a *AppProbe) bool {
	if a.Timeout < minAppTimeout || a.Timeout > maxAppTimeout {
		return false
	}
	switch a.Kind {
	case AppHTTP:
		line := "GET " + a.Path + " HTTP/1.1\r\nHost: a\r\n\r\n"
		r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(line)))
		return err == nil && r.RequestURI == a.Path && a.Path[0] == '/' && a.Service == "" && a.Send == nil
	case AppGRPC:
		return a.Path == "" && a.Send == nil && len(a.Service) <= maxService
	case AppSend:
		return a.Path == "" && a.Service == "" && len(a.Send) >= 1 && len(a.Send) <= maxSend
	}
	return false
}
