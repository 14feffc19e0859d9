// SPDX-License-Identifier: Apache-2.0

package api

import (
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

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
	code := make(map[string]bool)
	for _, v := range []any{report.Request{}, report.Response{}, Status{}, Policy{}, Sockets{}} {
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
	for _, w := range verdict.Words() {
		if !strings.Contains(text, "`"+string(w)+"`") {
			t.Errorf("verdict %s is not documented", w)
		}
	}
}
