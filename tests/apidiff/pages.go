package main

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
)

const secrets1 = "/api/v1/namespaces/paged/secrets"

// pages compares lists that come in pages, at versions and by selectors.
func pages() scenario {
	return scenario{name: "pages", run: func(ctx context.Context, s *server) (map[string]any, error) {
		if err := s.createNamespace(ctx, "paged"); err != nil {
			return nil, err
		}
		for i := range 7 {
			if err := s.createSecret(ctx, i); err != nil {
				return nil, err
			}
		}
		version, err := s.version(ctx, secrets1)
		if err != nil {
			return nil, err
		}
		out := map[string]any{}
		for _, query := range []string{"limit=3", "limit=7", "limit=100", "limit=0", "limit=-1", "limit=x",
			"limit=2&labelSelector=kind%3Deven", "limit=1&fieldSelector=metadata.name%3Ds3",
			"limit=2&fieldSelector=metadata.name!%3Ds3", "limit=2&fieldSelector=type%3DOpaque",
			"limit=2&resourceVersion=0", "limit=2&resourceVersion=VERSION",
			"limit=2&resourceVersion=VERSION&resourceVersionMatch=Exact",
			"limit=2&resourceVersion=VERSION&resourceVersionMatch=NotOlderThan",
			"limit=2&resourceVersion=0&resourceVersionMatch=NotOlderThan",
			"limit=2&resourceVersion=0&resourceVersionMatch=Exact", "resourceVersionMatch=Exact", "resourceVersion=x",
			"resourceVersion=-1", "resourceVersion=VERSION&resourceVersionMatch=Exact",
			"resourceVersion=VERSION&resourceVersionMatch=x", "resourceVersion=1&resourceVersionMatch=NotOlderThan",
			"resourceVersion=99999999&resourceVersionMatch=NotOlderThan",
			"resourceVersion=99999999&resourceVersionMatch=Exact", "limit=2&sendInitialEvents=true",
			"sendInitialEvents=true&resourceVersionMatch=NotOlderThan", "timeoutSeconds=x", "continue=x",
			"continue=e30",
			"continue=" + token("s2"), "continue=" + token("../s2"), "continue=" + token(""),
			"continue=" + token("s2") + "&resourceVersion=1", "continue=" + token("s2") + "&resourceVersion=0",
			"continue=" + token("s2") + "&resourceVersionMatch=Exact",
			"continue=" + base64.RawURLEncoding.EncodeToString(
				[]byte(`{"v":"meta.k8s.io/v2","rv":1,"start":"a\u0000"}`)),
			"continue=" + base64.RawURLEncoding.EncodeToString(
				[]byte(`{"v":"meta.k8s.io/v1","rv":0,"start":"a\u0000"}`)),
		} {
			if out["list with "+query], err = s.walk(ctx, secrets1, query, version, "", nil); err != nil {
				return nil, err
			}
		}
		if out["in all namespaces"], err = s.walk(ctx, "/api/v1/secrets",
			"limit=4&fieldSelector=metadata.namespace%3Dpaged", version, "", nil); err != nil {
			return nil, err
		}
		for name, accept := range map[string]string{"as tables": asTableAlone,
			"as metadata": "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"} {
			if out[name], err = s.walk(ctx, secrets1, "limit=3", version, accept, nil); err != nil {
				return nil, err
			}
		}
		return out, s.changePages(ctx, version, out)
	}}
}

// changePages changes what is listed between pages, lists the old version, and deletes
// what selectors take.
func (s *server) changePages(ctx context.Context, version string, out map[string]any) error {
	var err error
	if out["changed between pages"], err = s.walk(ctx, secrets1, "limit=3", version, "", func() error {
		if _, err := s.must(ctx, http.MethodDelete, secrets1+"/s5", "", ""); err != nil {
			return err
		}
		return s.createSecret(ctx, 8)
	}); err != nil {
		return err
	}
	for name, query := range map[string]string{"now": "limit=5",
		"as it was": "limit=5&resourceVersionMatch=Exact&resourceVersion=VERSION"} {
		if out["after the change, "+name], err = s.walk(ctx, secrets1, query, version, "", nil); err != nil {
			return err
		}
	}
	for i, query := range []string{"labelSelector=kind%3Dodd&dryRun=All", "labelSelector=kind%3Dodd&limit=1",
		"fieldSelector=metadata.name%3Ds0", "fieldSelector=none%3Ds0", "labelSelector=a%3D%3D%3Db", "limit=2",
		"resourceVersion=x", "propagationPolicy=None", ""} {
		a, err := s.send(ctx, request{Method: http.MethodDelete, Path: secrets1 + "?" + query})
		if err != nil {
			return err
		}
		out[fmt.Sprintf("delete %d with %s", i, query)], _ = page(a, version)
		if out[fmt.Sprintf("after delete %d", i)], err = s.walk(ctx, secrets1, "", version, "", nil); err != nil {
			return err
		}
	}
	return nil
}

func (s *server) createSecret(ctx context.Context, i int) error {
	kind := []string{"even", "odd"}[i%2]
	return s.create(ctx, secrets1, fmt.Sprintf(`{"apiVersion":"v1","kind":"Secret","metadata":{"name":"s%d","labels":`+
		`{"kind":%q}}}`, i, kind))
}

// token is one that continues after a name, at the first version there was.
func token(name string) string {
	return base64.RawURLEncoding.EncodeToString(encode(map[string]any{"v": "meta.k8s.io/v1", "rv": 1,
		"start": name + "\x00"}))
}

// pagesLimit is more than any list of the scenario has.
const pagesLimit = 10

// walk reads all pages of a list. Between the first and the second change is called.
func (s *server) walk(ctx context.Context, path, query, version, accept string, change func() error) ([]any, error) {
	q, err := url.ParseQuery(query)
	if err != nil {
		return nil, err
	}
	if q.Get("resourceVersion") == "VERSION" {
		q.Set("resourceVersion", version)
	}
	out := []any{}
	for range pagesLimit {
		a, err := s.send(ctx, request{Method: http.MethodGet, Path: path + "?" + q.Encode(), Accept: accept})
		if err != nil {
			return nil, err
		}
		p, more := page(a, version)
		out = append(out, p)
		if more == "" {
			return out, nil
		}
		q.Set("continue", more)
		q.Del("resourceVersion")
		q.Del("resourceVersionMatch")
		if change != nil {
			if err := change(); err != nil {
				return nil, err
			}
			change = nil
		}
	}
	return append(out, "the list has no end"), nil
}

// page is what of a page is compared, the metadata of the list and the names in it,
// and what the next page is asked for by.
func page(a answer, version string) (out any, more string) {
	if s, failed := failure(a); failed {
		return errorOf(a.Code, string(s.Reason), s.Message), ""
	}
	o, _ := asJSONText(a.Body).(map[string]any)
	m, _ := o["metadata"].(map[string]any)
	if m == nil {
		m = map[string]any{}
	}
	if more, _ = m["continue"].(string); more != "" {
		m["continue"] = "there is more"
	}
	if v, _ := m["resourceVersion"].(string); v != "" {
		m["resourceVersion"] = "another version"
		if v == version {
			m["resourceVersion"] = "the version"
		}
	}
	names := []any{}
	for _, key := range []string{"items", "rows"} {
		list, _ := o[key].([]any)
		for _, i := range list {
			if row, ok := i.(map[string]any); ok && key == "rows" {
				i = row["object"]
			}
			item, _ := i.(map[string]any)
			meta, _ := item["metadata"].(map[string]any)
			names = append(names, meta["name"])
		}
	}
	m["kind"], m["names"], m["columns"] = o["kind"], names, o["columnDefinitions"]
	return m, more
}
