// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/loader"
)

// logged does everything that has a line of fixed keys, and returns the keys of each
// message.
func logged(t *testing.T) map[string][]string {
	t.Helper()
	var log bytes.Buffer
	bubble(t, "logged", func(t *testing.T, w *world, a *Agent) {
		a.Log = slog.New(slog.NewJSONHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
		id := w.add(1, 10*time.Second, nil)
		w.pol.Peers[0].Observe = true
		judgeOne(t, a, w.report(id, 0))
		w.payload(1)
		time.Sleep(2 * watchFirst)
		a.Judge(t.Context(), Report{Caller: Caller{NS: w.ns}, Cookie: 5}) // not found
		for _, e := range []loader.Event{{ID: id}, {ID: id, Stall: true}, {ID: id, Cause: loader.CauseConnect}} {
			a.logEnd(&e, "")
		}
	})
	all := make(map[string][]string)
	for line := range bytes.Lines(log.Bytes()) {
		var keys []string
		dec := json.NewDecoder(bytes.NewReader(line))
		_, _ = dec.Token() // {
		for dec.More() {
			key, _ := dec.Token()
			var value json.RawMessage
			if err := dec.Decode(&value); err != nil {
				t.Fatal(err)
			}
			keys = append(keys, key.(string))
		}
		var msg struct{ Msg string }
		if err := json.Unmarshal(line, &msg); err != nil {
			t.Fatal(err)
		}
		keys = keys[3:] // time, level, msg
		if before, ok := all[msg.Msg]; ok && !slices.Equal(before, keys) {
			t.Errorf("%s has the keys %q here, %q there", msg.Msg, before, keys)
		}
		all[msg.Msg] = keys
	}
	return all
}

// TestDocsLog: docs/log.md has every message of fixed keys, every key of it, and no
// other.
func TestDocsLog(t *testing.T) {
	labtest.NoKernel(t)
	b, err := os.ReadFile("../../docs/log.md")
	if err != nil {
		t.Fatal(err)
	}
	docs := make(map[string][]string)
	messages, sections, _ := strings.Cut(string(b), "\n## ")
	for section := range strings.SplitSeq(sections, "\n## ") {
		heading, body, _ := strings.Cut(section, "\n")
		var keys []string
		for _, row := range regexp.MustCompile("(?m)^\\| ((?:`[a-z_]+`(?:, )?)+) \\|").FindAllStringSubmatch(body, -1) {
			keys = append(keys, regexp.MustCompile("[a-z_]+").FindAllString(row[1], -1)...)
		}
		for message := range strings.SplitSeq(heading, ", ") {
			docs[message] = keys
		}
	}
	code := logged(t)
	for message := range code {
		if !strings.Contains(messages, "| `"+message+"` |") {
			t.Errorf("no level is told of %q", message)
		}
	}
	for message, keys := range code {
		if d := cmp.Diff(sorted(keys), sorted(docs[message])); d != "" {
			t.Errorf("%s: the code has (-), docs/log.md has (+):\n%s", message, d)
		}
		delete(docs, message)
	}
	if len(docs) != 0 || len(code) != 5 {
		t.Errorf("%d messages, and docs/log.md has others: %v", len(code), docs)
	}
}

func sorted(s []string) []string {
	s = slices.Clone(s)
	slices.Sort(s)
	return s
}

// TestLists: each closed list has every constant of its kind, so that nobody who
// counts, filters or documents by it misses a word.
func TestLists(t *testing.T) {
	lists := map[string][]string{
		"Action": texts(Actions()), "EntryKind": texts(EntryKinds()),
		"AttemptKind": texts(AttemptKinds()), "AttemptResult": texts(AttemptResults()),
	}
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	lists["reporter"] = Reporters()
	found := make(map[string][]string)
	for _, name := range files {
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok || len(spec.Values) != 1 {
				return true
			}
			name := ""
			if kind, ok := spec.Type.(*ast.Ident); ok {
				name = kind.Name
			} else if strings.HasPrefix(spec.Names[0].Name, "reporter") {
				name = "reporter"
			}
			if lit, ok := spec.Values[0].(*ast.BasicLit); ok && lists[name] != nil {
				word, _ := strconv.Unquote(lit.Value)
				found[name] = append(found[name], word)
			}
			return true
		})
	}
	for name, list := range lists {
		if d := cmp.Diff(sorted(found[name]), sorted(list)); d != "" {
			t.Errorf("%s: declared (-), listed (+):\n%s", name, d)
		}
	}
}

func texts[T ~string](of []T) (out []string) {
	for _, w := range of {
		out = append(out, string(w))
	}
	return out
}
