// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sockhealth/sockhealth/internal/conn"
)

var update = flag.Bool("update", false, "write the golden files anew")

// golden compares got with a file below testdata, word for word.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", path, diff)
	}
}

// Every mistake is named, with its place, its value and the remedy.
func TestRefused(t *testing.T) {
	files, err := filepath.Glob("testdata/refused/*.yaml")
	if err != nil || len(files) < 30 {
		t.Fatalf("found %d policies to refuse: %v", len(files), err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".yaml")
		t.Run(name, func(t *testing.T) {
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			p, err := Parse(name+".yaml", b)
			if p != nil {
				t.Errorf("a refused file gave a policy: %+v", p)
			}
			var all *Errors
			if !errors.As(err, &all) || len(all.List) == 0 {
				t.Fatalf("got %v, want *Errors", err)
			}
			for _, one := range all.List {
				if one.Line < 1 || one.Column < 1 {
					t.Errorf("no place: %q", one)
				}
			}
			golden(t, "refused/"+name+".txt", err.Error()+"\n")
		})
	}
}

const head = "version: 1\npeers:\n"

func mustParse(t testing.TB, text string) *Policy {
	t.Helper()
	p, err := Parse("policy.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestDefaults(t *testing.T) {
	p := mustParse(t, head+"  - {name: a, cidrs: [10.0.0.0/8]}\n")
	peer := p.Peers[0]
	if want := (conn.Options{KeepAlive: true, Idle: 5 * time.Second, Interval: 2 * time.Second, Count: 5, UserTimeout: 15 * time.Second}); peer.Options != want {
		t.Errorf("options %+v, want %+v", peer.Options, want)
	}
	if want := (Probe{Window: 3 * time.Second, Attempts: 5}); peer.Probe != want {
		t.Errorf("probe %+v, want %+v", peer.Probe, want)
	}
	if peer.Directions != Both || len(peer.Ports) != 0 || len(peer.Except) != 0 || peer.Line != 3 {
		t.Errorf("peer %+v", peer)
	}
}

// A peer overrides key by key, also below keepalive and probe; the rest comes
// from defaults and then from what is built in.
func TestOverride(t *testing.T) {
	p := mustParse(t, `version: 1
defaults:
  user_timeout: 31s
  keepalive: {idle: 6s, count: 7}
  probe: {attempts: 4}
  direction: inbound
  app_override: allow
  action: observe
  close_silent_after: 10m
  silence: 30s
  connect_timeout: 4s
peers:
  - {name: inherits, cidrs: [10.1.0.0/16]}
  - name: overrides
    cidrs: [10.2.0.0/16]
    user_timeout: 40s
    keepalive: {interval: 3s}
    probe: {window: 2s}
    direction: both
    app_override: tighten
    existing: ignore
    kernel_sockets: manage
    in_flight: user_timeout
    connect_timeout: off
    silence: off
    close_silent_after: off
    action: close
  - {name: enforces, cidrs: [10.3.0.0/16], app_override: enforce, close_silent_after: 1500ms, probe: {window: 1500ms, attempts: 3}}
`)
	want := []Peer{
		{
			Name: "inherits", Line: 13, Silence: 30 * time.Second, Override: Allow, Observe: true, CloseSilentAfter: 10 * time.Minute, ConnectTimeout: 4 * time.Second, Directions: Directions(conn.Inbound),
			Options: conn.Options{KeepAlive: true, Idle: 6 * time.Second, Interval: 2 * time.Second, Count: 7, UserTimeout: 31 * time.Second},
			Probe:   Probe{Window: 3 * time.Second, Attempts: 4},
			CIDRs:   []CIDR{{prefix("10.1.0.0/16"), 13, 30}},
		},
		{
			Name: "overrides", Line: 14, Directions: Both, LeaveExisting: true, KernelSockets: true,
			Options: conn.Options{KeepAlive: true, Idle: 6 * time.Second, Interval: 3 * time.Second, Count: 7, UserTimeout: 40 * time.Second},
			Probe:   Probe{Window: 2 * time.Second, Attempts: 4},
			CIDRs:   []CIDR{{prefix("10.2.0.0/16"), 15, 13}},
		},
		{
			Name: "enforces", Line: 28, Silence: 30 * time.Second, Override: Enforce, Observe: true, CloseSilentAfter: 1500 * time.Millisecond, ConnectTimeout: 4 * time.Second, Directions: Directions(conn.Inbound),
			Options: conn.Options{KeepAlive: true, Idle: 6 * time.Second, Interval: 2 * time.Second, Count: 7, UserTimeout: 31 * time.Second},
			Probe:   Probe{Window: 1500 * time.Millisecond, Attempts: 3},
			CIDRs:   []CIDR{{prefix("10.3.0.0/16"), 28, 30}},
		},
	}
	if diff := cmp.Diff(want, p.Peers, comparePrefixes); diff != "" {
		t.Errorf("peers (-want +got):\n%s", diff)
	}
}

// The outermost values are still right.
func TestRangesInclusive(t *testing.T) {
	for _, text := range []string{
		"user_timeout: 2147483647ms",
		"user_timeout: 2147483647ms, keepalive: {idle: 32767s, interval: 16000s, count: 127}",
		"user_timeout: 2147483647ms, keepalive: {idle: 1s, interval: 32767s, count: 1}",
		"user_timeout: 2s, keepalive: {idle: 1s, interval: 1s, count: 1}",
		"user_timeout: 15001ms",
		"probe: {window: 500ms, attempts: 1}",
		"probe: {window: 1m, attempts: 120}",
		"probe: {window: 2501ms}",
		"ports: [1, 65535]",
		"ports: [1-65535]",
		"except: []",
		"keepalive: {}",
		"close_silent_after: 3s",
		"close_silent_after: 24h",
		"silence: 1s",
		"silence: 24h",
		"silence: off",
		"close_silent_after: 500ms, probe: {window: 500ms, attempts: 1}",
		"app_probe: {http: {port: 1}, timeout: 100ms}",
		"app_probe: {http: {port: 65535}, timeout: 1m}",
		"app_probe: {http: {path: /" + strings.Repeat("p", maxPath-1) + "}}",
		"app_probe: {grpc: {service: " + strings.Repeat("s", maxService) + "}}",
		"app_probe: {send: {data: " + strings.Repeat("d", maxSend) + "}}",
		"app_probe: {send: {hex: " + strings.Repeat("0d", maxSend) + "}}",
		"app_probe: {grpc: {port: 7101}}, direction: inbound",
	} {
		if _, err := Parse("p", []byte(head+"  - {name: a, cidrs: [10.0.0.0/8], "+text+"}\n")); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestPorts(t *testing.T) {
	p := mustParse(t, head+`  - {name: a, cidrs: [10.0.0.0/8], ports: [7200, 7100-7150, 7110-7111, "7120-7160", 7161, "80", 7199]}`)
	want := []PortRange{{80, 80}, {7100, 7161}, {7199, 7200}}
	if diff := cmp.Diff(want, p.Peers[0].Ports); diff != "" {
		t.Errorf("ports (-want +got):\n%s", diff)
	}
}

func TestByteOrderMark(t *testing.T) {
	mustParse(t, "\ufeff"+head+"  - {name: a, cidrs: [10.0.0.0/8]}\n")
}

func TestRevision(t *testing.T) {
	const text = head + "  - {name: a, cidrs: [10.0.0.0/8]}\n"
	a, b, c := mustParse(t, text), mustParse(t, text), mustParse(t, text+"# changed\n")
	if a.Revision != b.Revision || a.Revision == c.Revision || len(a.Revision) != 12 {
		t.Errorf("revisions %q, %q, %q", a.Revision, b.Revision, c.Revision)
	}
}

func TestExample(t *testing.T) {
	p := mustParse(t, Example())
	if len(p.Peers) != 2 {
		t.Fatalf("example has %d peers", len(p.Peers))
	}
	// It shows every key that can be written, and its defaults are the ones
	// built in.
	for key := range knownKeys() {
		last := key[strings.LastIndexByte(key, '.')+1:]
		if !strings.Contains(Example(), last+":") {
			t.Errorf("example lacks %s", key)
		}
	}
	bare := mustParse(t, head+"  - {name: a, cidrs: [10.0.0.0/8]}\n").Peers[0]
	shown := p.Peers[0]
	shown.Name, shown.Line, shown.CIDRs, shown.Except, shown.Ports = bare.Name, bare.Line, bare.CIDRs, bare.Except, bare.Ports
	if bare.AppProbe != nil || shown.AppProbe == nil || !shown.AppProbe.CloseHung || shown.AppProbe.Timeout != 10*time.Second {
		t.Errorf("application probes: shown %+v, built in %+v", shown.AppProbe, bare.AppProbe)
	}
	shown.AppProbe = nil
	if p.Limits != DefaultLimits() {
		t.Errorf("example's limits are %+v", p.Limits)
	}
	if diff := cmp.Diff(bare, shown, comparePrefixes); diff != "" {
		t.Errorf("example's defaults (-built in +example):\n%s", diff)
	}
}

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good := write("good.yaml", Example())
	p, err := Load(good)
	if err != nil || p.File != good || p.Revision != mustParse(t, Example()).Revision {
		t.Errorf("good file: %+v, %v", p, err)
	}
	bad := write("bad.yaml", "version: 3\npeers: []\n")
	_, err = Load(bad)
	want := bad + ":1:10: version \"3\" is unknown: write version: 1\n" + bad + ":2:8: peers is empty: add a peer with name and cidrs"
	if err == nil || err.Error() != want {
		t.Errorf("bad file: %v, want %s", err, want)
	}
	if _, err := Load(filepath.Join(dir, "none.yaml")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	if _, err := Load(dir); err == nil {
		t.Error("a directory was read")
	}
	large := write("large.yaml", Example()+strings.Repeat("#", MaxSize))
	if _, err := Load(large); !errors.Is(err, ErrTooLarge) {
		t.Errorf("large file: %v", err)
	}
	fits := write("fits.yaml", Example()+"#"+strings.Repeat("x", MaxSize-len(Example())-1))
	if _, err := Load(fits); err != nil {
		t.Errorf("file of %d bytes: %v", MaxSize, err)
	}
}
