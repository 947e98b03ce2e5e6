package tests

import (
	"go/ast"
	"go/scanner"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

// packageVersion is the last element of an import path that says no name, only
// a version: k8s.io/api/core/v1.
var packageVersion = regexp.MustCompile(`^v[0-9]+((alpha|beta)[0-9]+)?$`)

// modules' majors are versions too, and not part of the package's name.
var major = regexp.MustCompile(`^k8s\.io/(api|apimachinery/pkg/apis|apiserver|client-go|cri-api|kubelet)/`)

// TestOneNameAPackage: a package is imported under its own name or under one
// alias, everywhere the same; the API's versions always under an alias, so that
// a reader knows whose v1 it is. No alias stands for two packages.
func TestOneNameAPackage(t *testing.T) {
	aliasOf, packageOf := map[string]string{}, map[string]string{}
	files(t, func(file string, f *ast.File) {
		for _, i := range f.Imports {
			imported := strings.Trim(i.Path.Value, `"`)
			if i.Name == nil {
				if packageVersion.MatchString(path.Base(imported)) && major.MatchString(imported) {
					t.Errorf("%s: %s needs an alias that says whose version it is", file, imported)
				}
				continue
			}
			alias := i.Name.Name
			if alias == "_" {
				continue
			}
			if was := aliasOf[imported]; was != "" && was != alias {
				t.Errorf("%s: %s is %s here, and %s elsewhere", file, imported, alias, was)
			}
			if was := packageOf[alias]; was != "" && was != imported {
				t.Errorf("%s: %s is %s here, and %s elsewhere", file, alias, imported, was)
			}
			aliasOf[imported], packageOf[alias] = alias, imported
		}
	})
}

// TestKeyOfErrors: errors are under one key in every log line.
func TestKeyOfErrors(t *testing.T) {
	files(t, func(file string, f *ast.File) {
		ast.Inspect(f, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			for i, arg := range call.Args[:max(len(call.Args)-1, 0)] {
				key, ok := arg.(*ast.BasicLit)
				value, isName := call.Args[i+1].(*ast.Ident)
				if ok && isName && key.Value == `"error"` && strings.HasPrefix(strings.ToLower(value.Name), "err") {
					t.Errorf(`%s: an error is logged as "error": the key is "err"`, file)
				}
			}
			return true
		})
	})
}

// Lines have at most so many columns; a tab counts as four.
const columns = 120

// TestWidth: no line is wider than a page shows. A string that cannot be divided
// may run over, with nothing but punctuation behind it.
func TestWidth(t *testing.T) {
	files(t, func(file string, _ *ast.File) {
		src, err := os.ReadFile(filepath.Join("..", file))
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range tooWide(src) {
			t.Errorf("%s:%d: more than %d columns", file, line, columns)
		}
	})
}

func TestTooWide(t *testing.T) {
	wide := strings.Repeat("x", columns)
	for src, want := range map[string]int{
		"package p\nvar a = 1\n":                         0,
		"package p\nvar a = f(\"" + wide + "\")\n":       0,
		"package p\nvar a = f(\"" + wide + "\", b)\n":    1,
		"package p\nvar a = `\n" + wide + "x\n`\n":       0,
		"package p\n// " + wide + "\n":                   0, // an address
		"package p\n// see " + wide + "\n":               1,
		"package p\nvar " + wide + " = 1\n":              1,
		"package p\nvar a = 1 // see " + wide + "\n":     1,
		"package p\n" + strings.Repeat("\t", 31) + "x\n": 1,
	} {
		if got := tooWide([]byte(src)); len(got) != want {
			t.Errorf("%q: lines %v", src, got)
		}
	}
}

// tooWide are the numbers of a source's lines that are too wide.
func tooWide(src []byte) (lines []int) {
	set := token.NewFileSet()
	file := set.AddFile("", set.Base(), len(src))
	var s scanner.Scanner
	s.Init(file, src, nil, scanner.ScanComments)
	for {
		pos, tok, text := s.Scan()
		if tok == token.EOF {
			return lines
		}
		if text == "" {
			text = tok.String()
		}
		at := set.Position(pos)
		begin := width(src[file.Offset(file.LineStart(at.Line)):at.Offset])
		first, _, _ := strings.Cut(text, "\n")
		if over(tok, first, begin) && (len(lines) == 0 || lines[len(lines)-1] != at.Line) {
			lines = append(lines, at.Line)
		}
	}
}

// over: a token that begins at a column and should not reach where it ends.
func over(tok token.Token, text string, begin int) bool {
	end := begin + width([]byte(text))
	switch tok {
	case token.STRING:
		return begin >= columns
	case token.COMMENT:
		words := strings.Fields(text)
		return end > columns && len(words) > 2
	case token.RPAREN, token.RBRACE, token.RBRACK, token.LBRACE, token.COMMA, token.SEMICOLON, token.COLON,
		token.PERIOD, token.ADD:
		return false
	}
	return end > columns
}

func width(text []byte) int {
	return utf8.RuneCount(text) + 3*strings.Count(string(text), "\t")
}
