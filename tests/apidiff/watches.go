package main

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
)

const (
	asTableAlone = "application/json;as=Table;v=v1;g=meta.k8s.io"
	asMetadata   = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
)

// step is a request that changes what is watched.
type step struct{ method, path, contentType, body string }

// watched is a part of the scenario of watches: what is watched while and after
// steps are done.
type watched struct {
	name, list string // list is the path whose version the watches begin at
	steps      []step
	watches    []watching
}

const (
	maps1   = "/api/v1/namespaces/watched/configmaps"
	pods1   = "/api/v1/namespaces/watched/pods"
	widgets = "/apis/watched.example.com/v1/namespaces/watched/widgets"
)

// labelled is the body of a ConfigMap.
func labelled(name, labels, data string) string {
	return fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q,"labels":{%s}},"data":{"a":%q}}`,
		name, labels, data)
}

var watchedParts = []watched{
	{name: "ConfigMaps", list: maps1, steps: []step{
		{http.MethodPost, maps1, plainJSON, labelled("a", "", "1")},
		{http.MethodPatch, maps1 + "/a", mergeType, `{"metadata":{"labels":{"watch":"yes"}}}`},
		{http.MethodPut, maps1 + "/a", plainJSON, labelled("a", `"watch":"yes"`, "2")},
		{http.MethodPut, maps1 + "/a", plainJSON, labelled("a", `"watch":"yes"`, "2")}, // changes nothing
		{http.MethodPatch, maps1 + "/a", mergeType, `{"metadata":{"labels":{"watch":null}}}`},
		{http.MethodPatch, maps1 + "/a", "application/json-patch+json",
			`[{"op":"add","path":"/metadata/labels","value":{"watch":"yes"}}]`},
		{http.MethodPost, maps1, plainJSON, labelled("b", `"watch":"yes"`, "1")},
		{http.MethodPatch, maps1 + "/b?fieldManager=apidiff-apply&force=true", "application/apply-patch+yaml",
			`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"b"},"data":{"b":"2"}}`},
		{http.MethodDelete, maps1 + "/a", plainJSON, ""},
		{http.MethodPatch, maps1 + "/b", mergeType, `{"metadata":{"finalizers":["example.com/a"]}}`},
		{http.MethodDelete, maps1 + "/b", plainJSON, ""},
		{http.MethodPatch, maps1 + "/b", mergeType, `{"metadata":{"finalizers":null}}`},
	}, watches: []watching{
		{name: "by label", path: maps1 + "?watch=true&labelSelector=watch%3Dyes", event: "DELETED", of: "b"},
		{name: "by a label that is not there", path: maps1 + "?watch=true&labelSelector=!watch&fieldSelector=" +
			"metadata.name%3Da", event: "DELETED", of: "a", nth: 2},
		{name: "by name", path: maps1 + "?watch=1&fieldSelector=metadata.name%3Da", event: "DELETED", of: "a"},
		{name: "by another name", path: maps1 + "?watch=true&labelSelector=watch&fieldSelector=metadata.name!%3Da",
			event: "DELETED", of: "b"},
		{name: "by the path of one", path: "/api/v1/watch/namespaces/watched/configmaps/a?x=y",
			event: "DELETED", of: "a"},
		{name: "by the path of all", path: "/api/v1/watch/configmaps?labelSelector=watch", event: "DELETED", of: "b"},
		{name: "of all namespaces", path: "/api/v1/configmaps?watch=true&labelSelector=watch+in+(yes,no)",
			event: "DELETED", of: "b"},
		{name: "as tables", path: maps1 + "?watch=true&labelSelector=watch%3Dyes", accept: asTableAlone,
			event: "DELETED", nth: 3},
		{name: "as metadata", path: maps1 + "?watch=true&labelSelector=watch%3Dyes", accept: asMetadata,
			event: "DELETED", of: "b"},
	}},
	{name: "Pods", list: pods1, steps: []step{
		{http.MethodPost, pods1, plainJSON, `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"},"spec":{` +
			`"schedulerName":"nobody","automountServiceAccountToken":false,"containers":[` +
			`{"name":"a","image":"a:1"}]}}`},
		{http.MethodPatch, pods1 + "/a/status", mergeType, `{"status":{"phase":"Running","podIP":"10.1.1.1",` +
			`"podIPs":[{"ip":"10.1.1.1"}]}}`},
		{http.MethodPatch, pods1 + "/a", mergeType, `{"metadata":{"labels":{"a":"b"}}}`},
		{http.MethodPost, pods1 + "/a/binding", plainJSON, `{"apiVersion":"v1","kind":"Binding","metadata":` +
			`{"name":"a"},"target":{"kind":"Node","name":"seed"}}`},
		{http.MethodPatch, pods1 + "/a/status", mergeType, `{"status":{"phase":"Failed"}}`},
		{http.MethodDelete, pods1 + "/a?gracePeriodSeconds=0", plainJSON, ""},
	}, watches: []watching{
		{name: "all", path: pods1 + "?watch=true", event: "DELETED"},
		{name: "by phase", path: pods1 + "?watch=true&fieldSelector=status.phase%3DRunning", event: "DELETED"},
		{name: "by another phase", path: pods1 + "?watch=true&fieldSelector=status.phase!%3DRunning", event: "DELETED",
			nth: 2},
		{name: "by address", path: pods1 + "?watch=true&fieldSelector=status.podIP%3D10.1.1.1", event: "DELETED"},
		{name: "by node", path: "/api/v1/pods?watch=true&fieldSelector=spec.nodeName%3Dseed," +
			"metadata.namespace%3Dwatched",
			event: "DELETED"},
		{name: "by no node", path: pods1 + "?watch=true&fieldSelector=spec.nodeName%3D", event: "DELETED"},
		{name: "by node and label", path: pods1 + "?watch=true&fieldSelector=spec.nodeName%3Dseed&labelSelector=a",
			event: "DELETED"},
		{name: "as tables", path: pods1 + "?watch=true&includeObject=None", accept: asTableAlone, event: "DELETED"},
	}},
	{name: "custom resources", list: widgets, steps: []step{
		{http.MethodPost, widgets, plainJSON, widget("red")},
		{http.MethodPatch, widgets + "/a", mergeType, `{"spec":{"color":"blue"}}`},
		{http.MethodPatch, widgets + "/a", mergeType, `{"spec":{"color":"red"}}`},
		{http.MethodPatch, widgets + "/a", mergeType, `{"status":{"size":3}}`}, // only its subresource has it
		{http.MethodPatch, widgets + "/a/status", mergeType, `{"status":{"size":3}}`},
		{http.MethodDelete, widgets + "/a", plainJSON, ""},
	}, watches: []watching{
		{name: "all", path: widgets + "?watch=true", event: "DELETED"},
		{name: "by field", path: widgets + "?watch=true&fieldSelector=spec.color%3Dred", event: "DELETED", nth: 2},
		{name: "by another field", path: widgets + "?watch=true&fieldSelector=spec.color!%3Dred", event: "DELETED"},
		{name: "as tables", path: widgets + "?watch=true", accept: asTableAlone, event: "DELETED"},
		{name: "as metadata", path: widgets + "?watch=true", accept: asMetadata, event: "DELETED"},
		{name: "in the other version", path: "/apis/watched.example.com/v2/namespaces/watched/widgets?watch=true",
			event: "DELETED"},
	}},
}

func widget(color string) string {
	return `{"apiVersion":"watched.example.com/v1","kind":"Widget","metadata":{"name":"a"},"spec":{"color":"` +
		color + `"}}`
}

const widgetVersion = `{"name":"%s","served":true,"storage":%t,"subresources":{"status":{}},` +
	`"selectableFields":[{"jsonPath":".spec.color"}],"additionalPrinterColumns":[{"name":"Color","type":"string",` +
	`"jsonPath":".spec.color"}],"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object",` +
	`"properties":{"color":{"type":"string"}}},"status":{"type":"object","properties":{"size":{"type":"integer"}}}}}}}`

var widgetDefinition = `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":` +
	`{"name":"widgets.watched.example.com"},"spec":{"group":"watched.example.com","scope":"Namespaced","names":` +
	`{"plural":"widgets","kind":"Widget"},"versions":[` + fmt.Sprintf(widgetVersion, "v1", true) + "," +
	fmt.Sprintf(widgetVersion, "v2", false) + `]}}`

// watchedNow are watches of two ConfigMaps that nobody changes, and those that are
// refused.
func watchedNow(version string) []watching {
	const both = "&labelSelector=now%3Dyes"
	at := func(query string) string { return maps1 + "?watch=true&" + query + both }
	out := []watching{
		{name: "what there is, and a bookmark", path: at("sendInitialEvents=true&resourceVersionMatch=NotOlderThan&" +
			"allowWatchBookmarks=true"), event: "BOOKMARK"},
		{name: "what there is, and a bookmark, as tables", path: at("sendInitialEvents=true&resourceVersionMatch=" +
			"NotOlderThan&allowWatchBookmarks=true"), accept: asTableAlone, event: "BOOKMARK"},
		{name: "what there is, and a bookmark, as metadata", path: at("sendInitialEvents=true&resourceVersionMatch=" +
			"NotOlderThan&allowWatchBookmarks=true"), accept: asMetadata, event: "BOOKMARK"},
		{name: "what there is at a version, and a bookmark", path: at("sendInitialEvents=true&resourceVersionMatch=" +
			"NotOlderThan&allowWatchBookmarks=true&resourceVersion=" + version), event: "BOOKMARK"},
		{name: "what there is, without bookmarks", path: at("sendInitialEvents=true&resourceVersionMatch=NotOlderThan"),
			event: "ADDED", nth: 2},
		{name: "what there is", path: at(""), event: "ADDED", nth: 2},
		{name: "from any version", path: at("resourceVersion=0"), event: "ADDED", nth: 2},
		{name: "for a second", path: maps1 + "?watch=true&timeoutSeconds=1&labelSelector=none"},
		{name: "for a second, from a version", path: at("timeoutSeconds=1&resourceVersion=" + version)},
		{name: "for a second, without what there is", path: at("sendInitialEvents=false&resourceVersionMatch=" +
			"NotOlderThan&timeoutSeconds=1&resourceVersion=" + version)},
	}
	accepted := map[string]bool{"continue=x": true, "timeoutSeconds=-1": true, "allowWatchBookmarks=x": true}
	for _, query := range []string{"sendInitialEvents=true", "resourceVersionMatch=NotOlderThan",
		"sendInitialEvents=true&resourceVersionMatch=Exact", "sendInitialEvents=true&resourceVersionMatch=x",
		"sendInitialEvents=x", "resourceVersion=x", "resourceVersion=-1", "timeoutSeconds=x", "timeoutSeconds=-1",
		"allowWatchBookmarks=x", "fieldSelector=data%3Da", "labelSelector=a%3D%3D%3Db", "fieldSelector=a", "continue=x",
		"limit=x"} {
		w := watching{name: "with " + query, path: maps1 + "?watch=true&" + query}
		if accepted[query] {
			w.path += "&timeoutSeconds=1&resourceVersion=" + version + "&labelSelector=none"
		}
		out = append(out, w)
	}
	for name, path := range map[string]string{
		"of a name":             maps1 + "/none?watch=true&timeoutSeconds=1&resourceVersion=" + version,
		"of a name and another": maps1 + "/none?watch=true&fieldSelector=metadata.name%3Dother",
		"of reviews":            "/apis/authorization.k8s.io/v1/subjectaccessreviews?watch=true",
		"of a status":           pods1 + "/none/status?watch=true",
		"of a kind that is not": "/api/v1/namespaces/watched/nothings?watch=true",
		"as text":               maps1 + "?watch=true&pretty=1&labelSelector=x&timeoutSeconds=1",
	} {
		w := watching{name: name, path: path}
		if name == "as text" {
			w.accept = "text/plain"
		}
		out = append(out, w)
	}
	return out
}

// watches compares sequences of events.
func watches() scenario {
	return scenario{name: "watches", run: func(ctx context.Context, s *server) (map[string]any, error) {
		if err := s.createNamespace(ctx, "watched"); err != nil {
			return nil, err
		}
		const definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
		if err := s.create(ctx, definitions, widgetDefinition); err != nil {
			return nil, err
		}
		for _, v := range []string{"v1", "v2"} {
			served := request{Method: http.MethodGet, Path: "/apis/watched.example.com/" + v + "/widgets"}
			if err := s.until(ctx, served, func(a answer) bool { return a.Code == http.StatusOK }); err != nil {
				return nil, err
			}
		}
		out := map[string]any{}
		for _, part := range watchedParts {
			if err := s.watchPart(ctx, part, out); err != nil {
				return nil, err
			}
		}
		return out, s.watchNow(ctx, out)
	}}
}

// watchPart does the steps of a part while its watches are open, and watches again
// from before all steps.
func (s *server) watchPart(ctx context.Context, part watched, out map[string]any) error {
	version, err := s.version(ctx, part.list)
	if err != nil {
		return err
	}
	read := map[string]func() (any, error){}
	for _, w := range part.watches {
		w.path += "&resourceVersion=" + version
		if read[w.name], err = s.follow(ctx, w); err != nil {
			return err
		}
	}
	for _, st := range part.steps {
		if _, err := s.must(ctx, st.method, st.path, st.contentType, st.body); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(read)) {
		if out[part.name+" "+name], err = read[name](); err != nil {
			return err
		}
	}
	for _, w := range part.watches {
		w.path += "&resourceVersion=" + version
		again, err := s.follow(ctx, w)
		if err != nil {
			return err
		}
		if out[part.name+" "+w.name+", afterwards"], err = again(); err != nil {
			return err
		}
	}
	return nil
}

func (s *server) watchNow(ctx context.Context, out map[string]any) error {
	for _, name := range []string{"now-a", "now-b"} {
		if err := s.create(ctx, maps1, labelled(name, `"now":"yes"`, "1")); err != nil {
			return err
		}
	}
	version, err := s.version(ctx, maps1)
	if err != nil {
		return err
	}
	for _, w := range watchedNow(version) {
		read, err := s.follow(ctx, w)
		if err != nil {
			return err
		}
		if out["a watch "+w.name], err = read(); err != nil {
			return err
		}
	}
	return nil
}

// version is the version of a list.
func (s *server) version(ctx context.Context, list string) (string, error) {
	o, err := s.must(ctx, http.MethodGet, list, "", "")
	if err != nil {
		return "", err
	}
	meta, _ := o["metadata"].(map[string]any)
	version, _ := meta["resourceVersion"].(string)
	if version == "" {
		return "", fmt.Errorf("%s has no version", list)
	}
	return version, nil
}
