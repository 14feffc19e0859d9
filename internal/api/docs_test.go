// SPDX-License-Identifier: Apache-2.0

package api

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sockhealth/sockhealth/internal/agent"
	"github.com/sockhealth/sockhealth/internal/coverage"
	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/verdict"
	"github.com/sockhealth/sockhealth/report"
)

// fields collects the JSON names of a type and of what it holds.
func fields(t reflect.Type, into map[string]bool) {
	switch t.Kind() {
	case reflect.Slice, reflect.Pointer:
		fields(t.Elem(), into)
	case reflect.Struct:
		for i := range t.NumField() {
			f := t.Field(i)
			if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" {
				into[name] = true
			}
			fields(f.Type, into)
		}
	}
}

// docs/api.md has every field of every body, and its tables have no other.
func TestDocs(t *testing.T) {
	b, err := os.ReadFile("../../docs/api.md")
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	for _, words := range []string{"Delivery", "The verdicts", "The reasons", notBounded} { // TestDocsWords, TestDocsNotBounded
		text = strings.Replace(text, section(t, text, words), "", 1)
	}
	code := make(map[string]bool)
	for _, v := range []any{
		report.Request{}, report.Response{}, report.Pending{}, report.Error{},
		Status{}, Policy{}, Sockets{}, Unmanaged{}, Explanation{}, Probed{}, Event{}, Reloaded{}, Refused{}, socketID{},
	} {
		fields(reflect.TypeOf(v), code)
	}
	for name := range code {
		if !strings.Contains(text, "`"+name+"`") {
			t.Errorf("field %s is not documented", name)
		}
	}
	first := regexp.MustCompile("(?m)^\\| ((?:`[a-z_]+`(?:, )?)+) \\|")
	word := regexp.MustCompile("[a-z_]+")
	rows := 0
	for _, m := range first.FindAllStringSubmatch(text, -1) {
		for _, name := range word.FindAllString(m[1], -1) {
			rows++
			if !code[name] {
				t.Errorf("documented field %s does not exist", name)
			}
		}
	}
	if rows < len(code)/2 {
		t.Errorf("found %d fields in the tables: the pattern is wrong", rows)
	}
}

const notBounded = "Why a connection is not bounded"

// docs/api.md has every reason why a connection is not bounded, and no other; what
// adoption refuses has the same words.
func TestDocsNotBounded(t *testing.T) {
	b, err := os.ReadFile("../../docs/api.md")
	if err != nil {
		t.Fatal(err)
	}
	var docs, code []string
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z0-9_]+)` \\| [^|]{10,} \\| [^|]{7,} \\|$").FindAllStringSubmatch(section(t, string(b), notBounded), -1) {
		docs = append(docs, m[1])
	}
	for _, r := range coverage.Reasons() {
		code = append(code, string(r))
	}
	if d := cmp.Diff(code, docs); d != "" {
		t.Errorf("the code has (-), docs/api.md has (+):\n%s", d)
	}
	for r := loader.RefusalMPTCP; !strings.HasPrefix(r.String(), "refusal_"); r++ {
		if !slices.Contains(code, r.String()) {
			t.Errorf("adoption refuses %s, which is no reason here", r)
		}
	}
}

// section returns what stands below a heading of the third order, up to the next
// one.
func section(t *testing.T, text, heading string) string {
	t.Helper()
	_, text, ok := strings.Cut(text, "\n### "+heading+"\n")
	if !ok {
		t.Fatalf("docs/api.md has no section %q", heading)
	}
	text, _, _ = strings.Cut(text, "\n### ")
	return text
}

// reasons returns the value of every constant of package verdict that is a
// reason.
func reasons(t *testing.T) map[string]bool {
	t.Helper()
	all := make(map[string]bool)
	files, err := filepath.Glob("../verdict/*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range f.Decls {
			group, ok := decl.(*ast.GenDecl)
			if !ok || group.Tok != token.CONST {
				continue
			}
			for _, spec := range group.Specs {
				one := spec.(*ast.ValueSpec)
				if !strings.HasPrefix(one.Names[0].Name, "Reason") || len(one.Values) != 1 {
					continue
				}
				lit, _ := one.Values[0].(*ast.BasicLit)
				if value, err := strconv.Unquote(lit.Value); err == nil {
					all[value] = true
				}
			}
		}
	}
	if len(all) < 15 {
		t.Fatalf("found %d reasons in package verdict", len(all))
	}
	return all
}

// docs/api.md explains every verdict and every reason, in full, and no other.
func TestDocsWords(t *testing.T) {
	b, err := os.ReadFile("../../docs/api.md")
	if err != nil {
		t.Fatal(err)
	}
	words := make(map[string]bool)
	for _, w := range verdict.Words() {
		words[string(w)] = true
	}
	for heading, code := range map[string]map[string]bool{"The verdicts": words, "The reasons": reasons(t)} {
		docs := make(map[string]bool)
		for line := range strings.Lines(section(t, string(b), heading)) {
			name, isRow := strings.CutPrefix(line, "| `")
			if !isRow {
				continue
			}
			cells := strings.Split(strings.Trim(line, "| \n"), " | ")
			name, _, _ = strings.Cut(name, "`")
			if docs[name] {
				t.Errorf("%s: %s stands there twice", heading, name)
			}
			docs[name] = true
			if len(cells) != 4 || slices.ContainsFunc(cells, func(c string) bool { return len(c) < 4 }) {
				t.Errorf("%s: the row of %s is not full: %q", heading, name, cells)
				continue
			}
			if heading == "The reasons" {
				for of := range strings.SplitSeq(cells[1], ", ") {
					if !words[strings.Trim(of, "`")] {
						t.Errorf("%s: %s is given to %s, which is no verdict", heading, name, of)
					}
				}
			}
		}
		if d := cmp.Diff(code, docs); d != "" {
			t.Errorf("%s, the code has (-), docs/api.md has (+):\n%s", heading, d)
		}
	}
}

// docs/cli.md and docs/api.md name every reporter and every action, and no other.
func TestDocsEventWords(t *testing.T) {
	for _, test := range []struct {
		file, row string
		words     []string
	}{
		{"cli.md", "| `--reporter ", ReporterWords()},
		{"cli.md", "| `--action ", ActionWords()},
		{"api.md", "| `reporter` ", ReporterWords()},
	} {
		b, err := os.ReadFile("../../docs/" + test.file)
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for line := range strings.Lines(string(b)) {
			if !strings.HasPrefix(line, test.row) {
				continue
			}
			found = true
			_, line, _ = strings.Cut(strings.TrimPrefix(line, "| "), "|")
			named := make(map[string]bool)
			for _, m := range regexp.MustCompile("`([a-z]+)`").FindAllStringSubmatch(line, -1) {
				named[m[1]] = true
			}
			words := make(map[string]bool)
			for _, w := range test.words {
				words[w] = true
			}
			if d := cmp.Diff(words, named); d != "" {
				t.Errorf("%s %s, the code has (-), the docs have (+):\n%s", test.file, test.row, d)
			}
		}
		if !found {
			t.Errorf("%s has no row %s", test.file, test.row)
		}
	}
}

// docs/api.md explains why closing is frozen in every way there is, and no other.
func TestDocsFreezes(t *testing.T) {
	b, err := os.ReadFile("../../docs/api.md")
	if err != nil {
		t.Fatal(err)
	}
	row := regexp.MustCompile("(?m)^\\| `frozen` \\| string \\| .*$").FindString(section(t, string(b), "The answer"))
	var docs []string
	for _, m := range regexp.MustCompile("`([a-z_]+)` \\(").FindAllStringSubmatch(row, -1) {
		docs = append(docs, m[1])
	}
	if d := cmp.Diff(words(agent.Freezes()), docs); d != "" {
		t.Errorf("the code has (-), docs/api.md has (+):\n%s", d)
	}
}

// docs/api.md explains every delivery, and no other.
func TestDocsDelivery(t *testing.T) {
	b, err := os.ReadFile("../../docs/api.md")
	if err != nil {
		t.Fatal(err)
	}
	var docs []string
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\| [^|]{50,} \\|$").FindAllStringSubmatch(section(t, string(b), "Delivery"), -1) {
		docs = append(docs, m[1])
	}
	if d := cmp.Diff(words(verdict.Deliveries()), docs); d != "" {
		t.Errorf("the code has (-), docs/api.md has (+):\n%s", d)
	}
}

// What is said about connections that cannot be judged has the words that they
// are answered with.
func TestUnmanagedWords(t *testing.T) {
	for name, wants := range map[string][]string{
		"../../README.md": {
			fmt.Sprintf("`%s` (`%s`)", verdict.Unmanaged, verdict.ReasonOlder),
			fmt.Sprintf("`%s` (`%s`)", verdict.Unknown, verdict.ReasonMPTCP), "After a restart of the agent",
		},
		"../../report/doc.go": {
			fmt.Sprintf("%q (%q)", verdict.Unmanaged, verdict.ReasonOlder),
			fmt.Sprintf("%q (%q)", verdict.Unknown, verdict.ReasonMPTCP), "After a restart of the agent",
		},
	} {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		text := strings.Join(strings.Fields(strings.ReplaceAll(string(b), "//", "")), " ")
		for _, want := range wants {
			if !strings.Contains(text, want) {
				t.Errorf("%s does not say %q", name, want)
			}
		}
	}
}

// docs/api.md has every path, parameter and limit.
func TestDocsLimits(t *testing.T) {
	b, err := os.ReadFile("../../docs/api.md")
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Join(strings.Fields(string(b)), " ") // lines may break anywhere
	want := []string{
		fmt.Sprintf("without both `local` and `peer` %d,", costPeer),
		fmt.Sprintf("gets %d tokens a second and may save up to %d", reportsPerSecond, reportsAtOnce),
		fmt.Sprintf("remembers the %d callers", maxBuckets),
		fmt.Sprintf("`wait`, milliseconds from 0 to %d,", maxWait.Milliseconds()),
		fmt.Sprintf("for %d s after it is in", int(keepFor.Seconds())),
		fmt.Sprintf("at most %d judgements of one user in one network namespace and %d in all", maxCallerIDs, maxIDs),
		fmt.Sprintf("%d MiB are kept for one user in one network namespace and %d MiB in all", maxCallerKept>>20, maxKept>>20),
		fmt.Sprintf("at most %d KiB", maxBody>>10),
		"POST " + reportsPath, "GET " + judgementsPath + "ID", "GET " + statusPath, "GET " + socketsPath, "GET " + explainPath, "GET " + unmanagedPath,
		"POST " + probePath, "GET " + eventsPath, "GET " + policyPath, "POST " + reloadPath,
	}
	for _, name := range eventParameters() {
		want = append(want, "`"+name+"=")
	}
	for _, words := range [][]string{
		EventKinds(), ActionWords(), ReporterWords(), words(verdict.Deliveries()), words(agent.AttemptKinds()), words(agent.AttemptResults()),
	} {
		for _, w := range words {
			want = append(want, "`"+w+"`")
		}
	}
	want = append(want, fmt.Sprintf("the last %d events", agent.JournalSize))
	for _, w := range want {
		if !strings.Contains(text, w) {
			t.Errorf("docs/api.md does not say %q", w)
		}
	}
}
