// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// list finds the packages whose tests can reach the kernel, and the names of those
// tests, and demands that whatever a pattern names is there: a test that was renamed
// would else be run no more, and nobody would know.
func (m *matrix) list(ctx context.Context) error {
	packages, err := m.privileged(ctx)
	if err != nil {
		return err
	}
	m.packages, m.tests = packages, make(map[string][]string)
	var all []string
	for _, pkg := range packages {
		if m.tests[pkg], err = testsOf(filepath.Join(m.top, pkg)); err != nil {
			return err
		}
		all = append(all, m.tests[pkg]...)
	}
	if m.run != "" {
		if err := demand(m.run, all); err != nil {
			return fmt.Errorf("read the tests to run: %w of any package that runs in machines [correct RUN, or --run]", err)
		}
	}
	return m.listVariants()
}

// listVariants demands the tests of the variants.
func (m *matrix) listVariants() error {
	for _, v := range variants {
		for pkg, pattern := range v.tests {
			if err := demand(pattern, m.tests[pkg]); err != nil {
				return fmt.Errorf("read the tests of the machines with %s: %w of %s [correct test/vm/variant.go]", v.name, err, pkg)
			}
		}
	}
	return nil
}

// matched reports whether a package has a test to run.
func (m *matrix) matched(pkg string) bool {
	return m.run == "" || slices.ContainsFunc(alternatives(m.run), func(one string) bool {
		return demand(one, m.tests[pkg]) == nil
	})
}

// demand returns an error that names the alternatives of a pattern of tests that match
// none of the names. The tests' own parts (TestX/part) are known only as they run.
func demand(pattern string, names []string) error {
	var missed []string
	for _, one := range alternatives(pattern) {
		top, _, _ := strings.Cut(one, "/")
		re, err := regexp.Compile(top)
		if err != nil {
			return fmt.Errorf("pattern %q: %w", one, err)
		}
		if !slices.ContainsFunc(names, re.MatchString) {
			missed = append(missed, one)
		}
	}
	if len(missed) > 0 {
		return fmt.Errorf("%q matches no test", missed)
	}
	return nil
}

// testsOf returns the names of what -test.run chooses from in a folder: tests, examples
// and the seeds of fuzz tests.
func testsOf(dir string) ([]string, error) {
	pkg, err := build.ImportDir(dir, 0)
	if err != nil {
		return nil, fmt.Errorf("list the tests of %s: %w", dir, err)
	}
	var names []string
	for _, file := range slices.Concat(pkg.TestGoFiles, pkg.XTestGoFiles) {
		f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(dir, file), nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, fmt.Errorf("list the tests of %s: %w", dir, err)
		}
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && testName.MatchString(fn.Name.Name) && fn.Name.Name != "TestMain" {
				names = append(names, fn.Name.Name)
			}
		}
	}
	return names, nil
}

var testName = regexp.MustCompile(`^(Test|Fuzz|Example)($|\P{Ll})`)

// alternatives takes a pattern apart, so that each part can be looked for: ^(A|B.*)$
// are ^A$ and ^B.*$. A group that is repeated stays whole.
func alternatives(pattern string) []string {
	depth, class := 0, false
	for i := 0; i < len(pattern); i++ {
		switch c := pattern[i]; {
		case c == '\\':
			i++
		case class:
			class = c != ']'
		case c == '[':
			class = true
		case c == '(':
			depth++
		case c == ')':
			depth--
		case c == '|' && depth == 0:
			return append(alternatives(pattern[:i]), alternatives(pattern[i+1:])...)
		}
	}
	m := group.FindStringSubmatchIndex(pattern)
	if m == nil {
		return []string{pattern}
	}
	var out []string
	for one := range strings.SplitSeq(pattern[m[2]:m[3]], "|") {
		out = append(out, alternatives(pattern[:m[0]]+one+pattern[m[3]+1:])...)
	}
	return out
}

// group is an innermost group that is not repeated.
var group = regexp.MustCompile(`\((?:\?:)?([^()\[\]\\?]*)\)(?:$|[^*+?{])`)
