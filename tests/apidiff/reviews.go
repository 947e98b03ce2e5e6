package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// subject is somebody whose access is reviewed.
type subject struct {
	Name   string
	Groups []string
}

func authenticated(name string, groups ...string) subject {
	return subject{name, append(groups, "system:authenticated")}
}

var subjects = []subject{
	{"system:anonymous", []string{"system:unauthenticated"}},
	authenticated("a-stranger"), authenticated("an-admin"), authenticated("an-editor"), authenticated("a-viewer"),
	authenticated("a-viewer-of-all"), authenticated("admins", "system:masters"),
	authenticated("somebody", "readers"), authenticated("a-monitor", "system:monitoring"),
	authenticated("system:serviceaccount:reviewed:robot", "system:serviceaccounts", "system:serviceaccounts:reviewed"),
	authenticated("system:serviceaccount:kube-system:job-controller", "system:serviceaccounts",
		"system:serviceaccounts:kube-system"),
	authenticated("system:node:reviewed", "system:nodes"), authenticated("system:node:other", "system:nodes"),
	authenticated("system:node:reviewed"), // not of the group
	authenticated("system:kube-scheduler"), authenticated("system:kube-controller-manager"),
	authenticated("system:kube-proxy"), authenticated("system:bootstrap:abcdef", "system:bootstrappers"),
}

// reviewedObjects are what subjects have rights by.
var reviewedObjects = [][2]string{
	{"/api/v1/nodes", `{"kind":"Node","apiVersion":"v1","metadata":{"name":"reviewed"}}`},
	{"/api/v1/namespaces/reviewed/serviceaccounts", `{"metadata":{"name":"robot"}}`},
	{"/api/v1/namespaces/reviewed/pods", `{"metadata":{"name":"of-node"},"spec":{"nodeName":"reviewed",` +
		`"serviceAccountName":"robot","containers":[{"name":"a","image":"a:1","envFrom":[{"configMapRef":` +
		`{"name":"map"}}]}],"volumes":[{"name":"s","secret":{"secretName":"known"}},{"name":"c",` +
		`"persistentVolumeClaim":{"claimName":"claim"}}]}}`},
	rights("roles", "robots", `"rules":[{"verbs":["get","list"],"apiGroups":[""],"resources":["pods","pods/log"]},`+
		`{"verbs":["*"],"apiGroups":["apps"],"resources":["*"]},{"verbs":["update"],"apiGroups":["*"],"resources":`+
		`["*/scale"]},{"verbs":["get"],"apiGroups":[""],"resources":["secrets"],"resourceNames":["one","two"]}]`),
	{"/apis/rbac.authorization.k8s.io/v1/clusterroles", `{"metadata":{"name":"reviewed-paths"},"rules":[` +
		`{"verbs":["get"],"nonResourceURLs":["/logs/*","/metrics"]},{"verbs":["list"],` +
		`"apiGroups":["example.com"],"resources":["prometheuses/status"]}]}`},
	bound("an-admin", "admin"), bound("an-editor", "edit"), bound("a-viewer", "view"),
	rights("rolebindings", "robot", `"subjects":[{"kind":"ServiceAccount","name":"robot","namespace":"reviewed"}],`+
		`"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"Role","name":"robots"}`),
	everywhereBound("a-viewer-of-all", `{"kind":"User","name":"a-viewer-of-all"}`, "view"),
	everywhereBound("readers", `{"kind":"Group","name":"readers"}`, "reviewed-paths"),
}

func rights(resource, name, rest string) [2]string {
	return [2]string{"/apis/rbac.authorization.k8s.io/v1/namespaces/reviewed/" + resource,
		`{"metadata":{"name":"` + name + `"},` + rest + `}`}
}

func bound(user, role string) [2]string {
	return rights("rolebindings", user, `"subjects":[{"kind":"User","name":"`+user+`"}],"roleRef":{"apiGroup":`+
		`"rbac.authorization.k8s.io","kind":"ClusterRole","name":"`+role+`"}`)
}

func everywhereBound(name, subject, role string) [2]string {
	return [2]string{"/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", `{"metadata":{"name":"reviewed-` + name +
		`"},"subjects":[` + subject + `],"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole",` +
		`"name":"` + role + `"}}`}
}

// accesses are what subjects are asked for: "VERB [NAMESPACE:]RESOURCE[.GROUP][/SUBRESOURCE]
// [NAME]", or "VERB /PATH".
var accesses = strings.Split(`get reviewed:pods
list reviewed:pods
list pods
watch pods
create reviewed:pods
delete reviewed:pods
delete default:pods
deletecollection reviewed:pods
get reviewed:pods/log a
create reviewed:pods/exec a
create reviewed:pods/eviction a
create reviewed:pods/binding a
update reviewed:pods/status a
patch reviewed:pods/ephemeralcontainers a
patch reviewed:pods/resize a
get reviewed:secrets known
get reviewed:secrets one
get reviewed:secrets
list reviewed:secrets
list reviewed:secrets known
get default:secrets known
get reviewed:configmaps map
get reviewed:configmaps other
update reviewed:configmaps map
get reviewed:persistentvolumeclaims claim
get reviewed:persistentvolumeclaims other
update reviewed:persistentvolumeclaims/status claim
get persistentvolumes other
create reviewed:serviceaccounts/token robot
create reviewed:serviceaccounts/token default
impersonate reviewed:serviceaccounts robot
get reviewed:serviceaccounts robot
get nodes reviewed
get nodes other
list nodes
create nodes
update nodes/status reviewed
get nodes/proxy reviewed
get nodes/metrics reviewed
delete nodes reviewed
get namespaces reviewed
get reviewed:namespaces
create namespaces
get componentstatuses
create reviewed:deployments.apps
update reviewed:deployments.apps/scale a
update reviewed:replicasets.extensions/scale a
get reviewed:controllerrevisions.apps a
create reviewed:roles.rbac.authorization.k8s.io
escalate reviewed:roles.rbac.authorization.k8s.io a
bind reviewed:rolebindings.rbac.authorization.k8s.io a
get clusterroles.rbac.authorization.k8s.io
get reviewed:leases.coordination.k8s.io reviewed
get kube-node-lease:leases.coordination.k8s.io reviewed
update kube-node-lease:leases.coordination.k8s.io other
get csinodes.storage.k8s.io reviewed
get csinodes.storage.k8s.io other
get volumeattachments.storage.k8s.io a
list storageclasses.storage.k8s.io
create certificatesigningrequests.certificates.k8s.io
create certificatesigningrequests.certificates.k8s.io/selfnodeclient
approve signers.certificates.k8s.io kubernetes.io/kubelet-serving
list resourceslices.resource.k8s.io
get reviewed:resourceclaims.resource.k8s.io a
create reviewed:events
create reviewed:events.events.k8s.io
create subjectaccessreviews.authorization.k8s.io
create selfsubjectaccessreviews.authorization.k8s.io
create tokenreviews.authentication.k8s.io
get customresourcedefinitions.apiextensions.k8s.io
list apiservices.apiregistration.k8s.io
list prometheuses.example.com/status
list prometheuses/status.example.com
get reviewed:endpoints
list endpointslices.discovery.k8s.io
list services
update reviewed:networkpolicies.networking.k8s.io a
get reviewed:poddisruptionbudgets.policy
get reviewed:nothings.nothing.example.com
* reviewed:pods
get *
get /healthz
get /healthz/etcd
get /readyz
get /livez/ping
get /version
get /version/
get /api
get /apis/apps
get /openapi/v2
get /metrics
get /metrics/slis
get /logs
get /logs/a
get /logs/
get /debug/pprof/heap
get /.well-known/openid-configuration
get /openid/v1/jwks
post /healthz
* /*`, "\n")

// attributes are the part of a review that says what is asked for.
func attributes(access string) map[string]any {
	words := strings.Fields(access)
	if strings.HasPrefix(words[1], "/") {
		return map[string]any{"nonResourceAttributes": map[string]any{"verb": words[0], "path": words[1]}}
	}
	out := map[string]any{"verb": words[0]}
	what := words[1]
	if ns, rest, found := strings.Cut(what, ":"); found {
		out["namespace"], what = ns, rest
	}
	resource, group, found := strings.Cut(what, ".")
	if !found {
		resource, group = what, ""
	}
	if rest, sub, found := strings.Cut(group, "/"); found {
		group, out["subresource"] = rest, sub
	} else if rest, sub, found := strings.Cut(resource, "/"); found && group == "" {
		resource, out["subresource"] = rest, sub
	}
	out["resource"], out["group"] = resource, group
	if len(words) > 2 {
		out["name"] = words[2]
	}
	return map[string]any{"resourceAttributes": out}
}

const (
	accessAPI = "/apis/authorization.k8s.io/v1/"
	// reviewedPath is of reviews of a namespace.
	reviewedPath = accessAPI + "namespaces/reviewed/localsubjectaccessreviews"
)

func review(kind string, spec map[string]any) []byte {
	return encode(map[string]any{"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec})
}

// reviews are the requests about who may do what.
func reviews() []request {
	var out []request
	add := func(what, path string, body []byte, as *subject) {
		out = append(out, request{Method: http.MethodPost, Path: path, Type: plainJSON, Body: body, What: "create",
			Kind: what, as: as})
	}
	for i, who := range subjects {
		for _, access := range accesses {
			spec := attributes(access)
			spec["user"], spec["groups"] = who.Name, who.Groups
			add("access of "+who.Name+" to "+access, accessAPI+"subjectaccessreviews",
				review("SubjectAccessReview", spec), nil)
		}
		for _, ns := range []string{"reviewed", "default", ""} {
			add("rules of "+who.Name+" in "+ns, accessAPI+"selfsubjectrulesreviews",
				review("SelfSubjectRulesReview", map[string]any{"namespace": ns}), &subjects[i])
		}
		for _, access := range []string{"get reviewed:pods", "get /metrics", "create reviewed:secrets"} {
			add("own access of "+who.Name+" to "+access, accessAPI+"selfsubjectaccessreviews",
				review("SelfSubjectAccessReview", attributes(access)), &subjects[i])
		}
		add("who is "+who.Name, "/apis/authentication.k8s.io/v1/selfsubjectreviews",
			[]byte(`{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}`), &subjects[i])
		for _, path := range []string{"/api/v1/namespaces/reviewed/pods/of-node", "/api/v1/nodes/reviewed", "/api",
			"/healthz", "/metrics/none", "/api/v1/namespaces/reviewed/secrets/none", "/api/v1/pods", "/nothing",
			"/apis/none.example.org/v1/nothings"} {
			out = append(out, request{Method: http.MethodGet, Path: path, What: "get as " + who.Name, Kind: path,
				as: &subjects[i], ignore: map[string]bool{"status": true, "metadata.managedFields": true, "spec": true,
					"items": true, "metadata.annotations": true}})
		}
	}
	for _, tc := range oddReviews {
		path := accessAPI + tc.path
		if tc.path == "" {
			path = reviewedPath
		}
		add("a review with "+tc.spec, path, []byte(tc.spec), nil)
	}
	return out
}

// oddReviews are reviews that are wrong, or rare. Without a path they are of a namespace.
var oddReviews = []struct{ path, spec string }{
	{"", `{"metadata":{"namespace":"reviewed"},"spec":{"user":"an-admin","resourceAttributes":` +
		`{"namespace":"reviewed","verb":"get","resource":"pods"}}}`},
	{"", `{"metadata":{"namespace":"reviewed"},"spec":{"user":"an-admin","resourceAttributes":{"namespace":"default",` +
		`"verb":"get","resource":"pods"}}}`},
	{"", `{"spec":{"user":"an-admin","resourceAttributes":{"verb":"get","resource":"pods"}}}`},
	{"", `{"metadata":{"namespace":"other"},"spec":{"user":"an-admin","resourceAttributes":{"namespace":"reviewed",` +
		`"verb":"get","resource":"pods"}}}`},
	{"", `{"spec":{"user":"an-admin","nonResourceAttributes":{"verb":"get","path":"/"}}}`},
	{"", `{"spec":{"resourceAttributes":{"namespace":"reviewed","verb":"get","resource":"pods"}}}`},
	{"subjectaccessreviews", `{"spec":{"user":"a"}}`},
	{"subjectaccessreviews", `{"spec":{"resourceAttributes":{"verb":"get"}}}`},
	{"subjectaccessreviews", `{"metadata":{"name":"a"},"spec":{"user":"a","resourceAttributes":{"verb":"get"}}}`},
	{"subjectaccessreviews", `{"metadata":{"labels":{"a":"b"}},"spec":{"user":"a","resourceAttributes":` +
		`{"verb":"get"}}}`},
	{"subjectaccessreviews", `{"spec":{"user":"a","resourceAttributes":{"verb":"get"},"nonResourceAttributes":` +
		`{"verb":"get","path":"/"}}}`},
	{"subjectaccessreviews", `{"spec":{"groups":["system:masters"],"resourceAttributes":{"verb":"get"}}}`},
	{"subjectaccessreviews", `{"spec":{"user":"system:node:reviewed","groups":["system:nodes"],"resourceAttributes":` +
		`{"verb":"list","resource":"pods","fieldSelector":{"requirements":[{"key":"spec.nodeName",` +
		`"operator":"In","values":["reviewed"]}]}}}}`},
	{"subjectaccessreviews", `{"spec":{"user":"system:node:reviewed","groups":["system:nodes"],"resourceAttributes":` +
		`{"verb":"list","resource":"pods","fieldSelector":{"rawSelector":"spec.nodeName=reviewed"}}}}`},
	{"subjectaccessreviews", `{"spec":{"user":"system:node:reviewed","groups":["system:nodes"],"resourceAttributes":` +
		`{"verb":"list","resource":"pods","fieldSelector":{"rawSelector":"spec.nodeName=other"}}}}`},
	{"subjectaccessreviews", `{"spec":{"user":"a","resourceAttributes":{"verb":"list","resource":"pods",` +
		`"fieldSelector":{"rawSelector":"a==","requirements":[{"key":"a","operator":"In"}]},` +
		`"labelSelector":{"requirements":[{"key":"","operator":"x","values":["a"]}]}}}}`},
	{"subjectaccessreviews", `{"spec":{"user":"a","resourceAttributes":{"verb":"list","resource":"pods",` +
		`"labelSelector":{"rawSelector":"a in (b"}}}}`},
	{"subjectaccessreviews", `{"spec":{"user":"a","resourceAttributes":{"verb":"list","resource":"pods",` +
		`"labelSelector":{},"fieldSelector":{"requirements":[]}}}}`},
	{"selfsubjectaccessreviews", `{"spec":{}}`},
	{"selfsubjectaccessreviews", `{"spec":{"resourceAttributes":{}}}`},
	{"selfsubjectrulesreviews", `{"spec":{}}`},
	{"selfsubjectrulesreviews", `{}`},
}

// prepareReviews makes what subjects have rights by, and waits until both servers
// know of it.
func prepareReviews(ctx context.Context, p *pair) error {
	for _, s := range []*server{p.upstream, p.shoal} {
		if s.tape != nil && s.tape.playing {
			continue
		}
		if err := s.prepareReviews(ctx); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return nil
}

func (s *server) prepareReviews(ctx context.Context) error {
	if s.name == "upstream" {
		for _, role := range []string{"view", "edit", "admin"} { // one is part of the next
			if err := s.aggregate(ctx, role); err != nil {
				return err
			}
		}
	}
	if err := s.createNamespace(ctx, "reviewed"); err != nil {
		return err
	}
	for _, o := range reviewedObjects {
		if err := s.create(ctx, o[0], o[1]); err != nil {
			return err
		}
	}
	for _, known := range [][2]string{
		{"system:serviceaccount:reviewed:robot", "get reviewed:pods"}, {"a-viewer-of-all", "list pods"},
		{"an-admin", "create reviewed:secrets"}, {"an-editor", "create reviewed:secrets"},
		{"a-viewer", "get reviewed:pods"},
		{"system:node:reviewed", "get reviewed:secrets known"}, {"somebody", "get /logs/a"},
	} {
		i := slices.IndexFunc(subjects, func(who subject) bool { return who.Name == known[0] })
		spec := attributes(known[1])
		spec["user"], spec["groups"] = subjects[i].Name, subjects[i].Groups
		if err := s.until(ctx, request{Method: http.MethodPost, Path: accessAPI + "subjectaccessreviews",
			Type: plainJSON, Body: review("SubjectAccessReview", spec)},
			func(a answer) bool { return bytes.Contains(a.Body, []byte(`"allowed":true`)) }); err != nil {
			return err
		}
	}
	return nil
}

// aggregate does for a role what upstream's controller manager does, which is not
// started: its rules are those of the roles that it selects.
func (s *server) aggregate(ctx context.Context, role string) error {
	const path = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
	list, err := s.must(ctx, http.MethodGet, path+"?labelSelector=rbac.authorization.k8s.io%2Faggregate-to-"+role+
		"%3Dtrue", "", "")
	if err != nil {
		return err
	}
	rules := []any{}
	items, _ := list["items"].([]any)
	for _, i := range items {
		o, _ := i.(map[string]any)
		of, _ := o["rules"].([]any)
		for _, rule := range of {
			same := func(r any) bool { return bytes.Equal(encode(r), encode(rule)) }
			if !slices.ContainsFunc(rules, same) {
				rules = append(rules, rule)
			}
		}
	}
	body, err := json.Marshal(map[string]any{"rules": rules})
	if err != nil {
		return err
	}
	_, err = s.must(ctx, http.MethodPatch, path+"/"+role, mergeType, string(body))
	return err
}

// compareReviews asks both who may do what.
func compareReviews(ctx context.Context, p *pair, r *report) error {
	if err := prepareReviews(ctx, p); err != nil {
		return err
	}
	for _, req := range reviews() {
		if err := r.ask(ctx, p, req); err != nil {
			return err
		}
	}
	return nil
}
