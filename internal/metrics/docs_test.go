// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sockhealth/sockhealth/internal/policy"
)

// entry is a metric as the documentation gives it.
type entry struct {
	Type   string
	Labels []string
}

// row matches a line of the tables: name, type, labels, meaning.
var row = regexp.MustCompile("(?m)^\\| `(sockhealth_[a-z_]+)` \\| ([a-z]+) \\| ([^|]*) \\| ([^|]+) \\|$")

// documented reads docs/metrics.md.
func documented(t *testing.T) (map[string]entry, string) {
	t.Helper()
	b, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	out := make(map[string]entry)
	for _, m := range row.FindAllStringSubmatch(string(b), -1) {
		if _, twice := out[m[1]]; twice {
			t.Errorf("%s stands there twice", m[1])
		}
		e := entry{Type: m[2], Labels: []string{}}
		for label := range strings.SplitSeq(m[3], ",") {
			if label = strings.Trim(strings.TrimSpace(label), "`"); label != "" {
				e.Labels = append(e.Labels, label)
			}
		}
		slices.Sort(e.Labels)
		out[m[1]] = e
	}
	return out, string(b)
}

// The documentation has every metric with its type and labels, every word that
// a label can have, and nothing else.
func TestDocs(t *testing.T) {
	docs, text := documented(t)
	families, err := fresh().metrics().registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	code := make(map[string]entry)
	for _, f := range families {
		if !strings.HasPrefix(f.GetName(), prefix) {
			continue
		}
		e := entry{Type: strings.ToLower(f.GetType().String()), Labels: []string{}}
		for _, l := range f.GetMetric()[0].GetLabel() {
			e.Labels = append(e.Labels, l.GetName())
		}
		code[f.GetName()] = e
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				free := l.GetName() == "policy" || strings.HasSuffix(f.GetName(), "_info")
				if !free && !strings.Contains(text, "`"+l.GetValue()+"`") {
					t.Errorf("%s: %s %q is not documented", f.GetName(), l.GetName(), l.GetValue())
				}
			}
		}
	}
	if d := cmp.Diff(code, docs); d != "" {
		t.Errorf("the code has (-), docs/metrics.md has (+):\n%s", d)
	}
	if mentioned := regexp.MustCompile(prefix+`[a-z_]+`).FindAllString(text, -1); len(mentioned) > 0 {
		for _, name := range slices.Sorted(maps.Keys(set(mentioned))) {
			if _, ok := code[name]; !ok {
				t.Errorf("docs/metrics.md mentions %s, which is no metric", name)
			}
		}
	}
}

// What the documentation says in figures is what the code has.
func TestDocsFigures(t *testing.T) {
	_, text := documented(t)
	b, err := os.ReadFile("../../bpf/options.h")
	if err != nil {
		t.Fatal(err)
	}
	room := regexp.MustCompile(`(?m)^#define SH_MIN_ROOM ([0-9]+)$`).FindSubmatch(b)
	if room == nil {
		t.Fatal("bpf/options.h has no SH_MIN_ROOM")
	}
	var bounds []string
	for _, b := range verdictBuckets() {
		bounds = append(bounds, strconv.FormatFloat(b, 'f', -1, 64))
	}
	for _, want := range []string{
		fmt.Sprintf("max(c, min(policy's count, %s))", room[1]),
		fmt.Sprintf("at most once in %d ms", policy.MinSpacing.Milliseconds()),
		"The bounds, in seconds: " + strings.Join(bounds, ", ") + ".",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("docs/metrics.md does not say %q", want)
		}
	}
}

func set(list []string) map[string]bool {
	out := make(map[string]bool, len(list))
	for _, s := range list {
		out[s] = true
	}
	return out
}
