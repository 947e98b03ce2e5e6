package auth_test

import (
	"context"
	"crypto/x509"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/shoal-project/shoal/coordinator/admission"
	"github.com/shoal-project/shoal/coordinator/apiserver"
	"github.com/shoal-project/shoal/coordinator/apiserver/apitest"
	"github.com/shoal-project/shoal/coordinator/auth"
	"github.com/shoal-project/shoal/coordinator/pki"
	"github.com/shoal-project/shoal/coordinator/registry"
)

// cluster is a server with this package's rules and the admission chain.
type cluster struct {
	*apitest.Server
	admin kubernetes.Interface
}

func start(t *testing.T) *cluster {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	dir := t.TempDir()
	var authz *auth.Authorizer
	options := apitest.Options{Kinds: registry.Kinds(), Dir: dir}
	options.Security = func(s *apiserver.Server) (apiserver.Security, error) {
		a, err := newAuth(pki.Dir(dir + "/pki"))
		if err != nil {
			return apiserver.Security{}, err
		}
		authz = a.Authorizer
		if err := a.Connect(s.Client(), s.Informers()); err != nil {
			return apiserver.Security{}, err
		}
		dynamic, err := s.Dynamic()
		if err != nil {
			return apiserver.Security{}, err
		}
		plugins, err := admission.Chain(admission.Config{
			Client: s.Client(), Informers: s.Informers(), Authorizer: a.Authorizer, Dynamic: dynamic,
		})
		s.Informers().Start(ctx.Done())
		return apiserver.Security{
			Authenticator: a.Authenticator, Authorizer: a.Authorizer, Audiences: a.Audiences,
			Rules: a.Authorizer, Tokens: a.Issuer, AuthenticateToken: a.Token, Admission: plugins,
		}, err
	}
	c := &cluster{Server: apitest.Start(t, options)}
	c.admin = c.Kubernetes(t)
	begin := time.Now()
	if err := auth.EnsureBootstrapPolicy(ctx, c.Client()); err != nil {
		t.Fatal(err)
	}
	t.Logf("bootstrap policy: %v", time.Since(begin))
	eventually(t, "RBAC knows the policy", func() bool {
		return authz.HasSynced() &&
			c.canI(t, c.user(t, "probe"), "create", "selfsubjectreviews", "authentication.k8s.io", "")
	})
	return c
}

func newAuth(keys pki.Dir) (*auth.Auth, error) {
	signer, err := keys.ServiceAccountKey()
	if err != nil {
		return nil, err
	}
	pem, err := os.ReadFile(keys.Path("ca.crt"))
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	return auth.New(auth.Config{ClientCAs: roots, SigningKey: signer, ExternalHost: "127.0.0.1:6443"})
}

// user returns a client with a certificate.
func (c *cluster) user(t *testing.T, name string, groups ...string) kubernetes.Interface {
	t.Helper()
	ca, err := c.Keys.CA()
	if err != nil {
		t.Fatal(err)
	}
	cert, key, err := ca.Issue(pki.Spec{User: name, Groups: groups}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	config := rest.CopyConfig(c.Config)
	config.CertData, config.KeyData = cert, key
	return client(t, config)
}

// bearer returns a client with a token.
func (c *cluster) bearer(t *testing.T, token string) kubernetes.Interface {
	t.Helper()
	config := rest.AnonymousClientConfig(c.Config)
	config.BearerToken = token
	return client(t, config)
}

func client(t *testing.T, config *rest.Config) kubernetes.Interface {
	t.Helper()
	k, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func (c *cluster) canI(t *testing.T, k kubernetes.Interface, verb, resource, group, namespace string) bool {
	t.Helper()
	review, err := k.AuthorizationV1().SelfSubjectAccessReviews().Create(t.Context(),
		&authorizationv1.SelfSubjectAccessReview{
			Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
				Verb: verb, Resource: resource, Group: group, Namespace: namespace,
			}},
		}, metav1.CreateOptions{})
	return err == nil && review.Status.Allowed
}

func (c *cluster) namespace(t *testing.T, name string) {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if _, err := c.admin.CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{}); err != nil &&
		!apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
}

func (c *cluster) grant(t *testing.T, namespace, name string, subject rbacv1.Subject, rule rbacv1.PolicyRule) {
	t.Helper()
	meta := metav1.ObjectMeta{Name: name, Namespace: namespace}
	if _, err := c.admin.RbacV1().Roles(namespace).Create(t.Context(),
		&rbacv1.Role{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{rule}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.admin.RbacV1().RoleBindings(namespace).Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: meta, Subjects: []rbacv1.Subject{subject},
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not in time: %s", what)
		}
	}
}

func wantError(t *testing.T, err error, text string) {
	t.Helper()
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), text) {
		t.Errorf("got %v, want forbidden with %q", err, text)
	}
}

var get, create = metav1.GetOptions{}, metav1.CreateOptions{}

func TestAPI(t *testing.T) {
	c := start(t)
	t.Run("anonymous", c.testAnonymous)
	t.Run("public_info", c.testPublicInfo)
	t.Run("subresources", c.testSubresources)
	t.Run("restricted_user", c.testRestrictedUser)
	t.Run("bootstrap_token", c.testBootstrapToken)
	t.Run("pod_token", c.testPodToken)
	t.Run("claim_status", c.testClaimStatus)
	t.Run("node", c.testNode)
	t.Run("webhook", c.testWebhook)
	t.Run("policy", c.testPolicy)
	t.Run("policy_author", c.testPolicyAuthor)
	t.Run("pod_security", c.testPodSecurity)
}

func (c *cluster) testAnonymous(t *testing.T) {
	config := rest.AnonymousClientConfig(c.Config)
	transport, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	// What the role system:public-info-viewer names, and nothing below it.
	for path, want := range map[string]int{"/healthz": 200, "/livez": 200, "/readyz": 200, "/version": 200, "/api": 403,
		"/metrics": 403, "/api/v1/pods": 403, "/healthz/ping": 403, "/readyz?verbose": 200, "/openapi/v2": 403,
		"/.well-known/openid-configuration": 403, "/nowhere": 403} {
		resp, err := transport.Get(c.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("GET %s: %d, want %d", path, resp.StatusCode, want)
		}
	}
	request, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, c.URL+"/healthz", nil)
	request.Header.Set("Authorization", "Bearer nonsense")
	resp, err := transport.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("a bad token was taken for anonymous: %d", resp.StatusCode)
	}
}

// Nobody reads health paths but by RBAC.
func (c *cluster) testPublicInfo(t *testing.T) {
	ctx := t.Context()
	client, err := rest.HTTPClientFor(rest.AnonymousClientConfig(c.Config))
	if err != nil {
		t.Fatal(err)
	}
	code := func() int {
		resp, err := client.Get(c.URL + "/livez")
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		return resp.StatusCode
	}
	bindings := c.admin.RbacV1().ClusterRoleBindings()
	public, err := bindings.Get(ctx, "system:public-info-viewer", get)
	if err != nil {
		t.Fatal(err)
	}
	if err := bindings.Delete(ctx, public.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "nobody reads /livez", func() bool { return code() == http.StatusForbidden })
	public.ResourceVersion, public.UID = "", ""
	if _, err := bindings.Create(ctx, public, create); err != nil {
		t.Fatal(err)
	}
	eventually(t, "all read /livez", func() bool { return code() == http.StatusOK })
}

// Rules on subresources decide alike for a review in either form and for a
// request. kubectl and operators ask with the slash in the resource.
func (c *cluster) testSubresources(t *testing.T) {
	c.namespace(t, "subs")
	for user, rule := range map[string]string{"sub-one": "pods/status", "sub-any": "*/status"} {
		c.grant(t, "subs", user, rbacv1.Subject{Kind: "User", Name: user},
			rbacv1.PolicyRule{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{rule}})
	}
	review := func(user, resource, subresource string) bool {
		r, err := c.admin.AuthorizationV1().SubjectAccessReviews().Create(t.Context(),
			&authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: user,
				ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "get", Namespace: "subs",
					Resource: resource, Subresource: subresource}}}, create)
		if err != nil {
			t.Fatal(err)
		}
		return r.Status.Allowed
	}
	for _, user := range []string{"sub-one", "sub-any"} {
		eventually(t, user+" may", func() bool { return review(user, "pods", "status") })
		if slash := review(user, "pods/status", ""); slash != (user == "sub-one") {
			t.Errorf("%s, with a slash: %t", user, slash)
		}
		if review(user, "pods", "") {
			t.Errorf("%s may get pods", user)
		}
		pods := c.user(t, user).CoreV1().RESTClient()
		status := pods.Get().Namespace("subs").Resource("pods").Name("none").SubResource("status")
		if err := status.Do(t.Context()).Error(); !apierrors.IsNotFound(err) {
			t.Errorf("%s: request for the status: %v", user, err)
		}
		whole := pods.Get().Namespace("subs").Resource("pods").Name("none")
		if err := whole.Do(t.Context()).Error(); !apierrors.IsForbidden(err) {
			t.Errorf("%s: request for the pod: %v", user, err)
		}
	}
}

func (c *cluster) testRestrictedUser(t *testing.T) {
	c.namespace(t, "team")
	anna := c.user(t, "anna", "dev")
	_, err := anna.CoreV1().ConfigMaps("team").List(t.Context(), metav1.ListOptions{})
	wantError(t, err, `configmaps is forbidden: User "anna" cannot list resource "configmaps" in API group "" in the namespace "team"`)

	all := rbacv1.PolicyRule{Verbs: []string{"*"}, APIGroups: []string{rbacv1.GroupName}, Resources: []string{"roles", "rolebindings"}}
	read := rbacv1.PolicyRule{Verbs: []string{"list", "get"}, APIGroups: []string{""}, Resources: []string{"configmaps"}}
	c.grant(t, "team", "read", rbacv1.Subject{Kind: "Group", Name: "dev"}, read)
	c.grant(t, "team", "delegate", rbacv1.Subject{Kind: "User", Name: "anna"},
		rbacv1.PolicyRule{Verbs: []string{"create", "update"}, APIGroups: all.APIGroups, Resources: all.Resources})
	eventually(t, "anna may", func() bool {
		return c.canI(t, anna, "list", "configmaps", "", "team") &&
			c.canI(t, anna, "create", "roles", rbacv1.GroupName, "team")
	})
	if c.canI(t, anna, "list", "secrets", "", "team") || c.canI(t, anna, "list", "configmaps", "", "default") {
		t.Error("anna may more than granted")
	}

	role := func(name string, rule rbacv1.PolicyRule) *rbacv1.Role {
		return &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: []rbacv1.PolicyRule{rule}}
	}
	if _, err = anna.RbacV1().Roles("team").Create(t.Context(), role("same", read), create); err != nil {
		t.Errorf("granting what one has: %v", err)
	}
	_, err = anna.RbacV1().Roles("team").Create(t.Context(),
		role("more",
			rbacv1.PolicyRule{Verbs: []string{"get", "list"}, APIGroups: []string{""}, Resources: []string{"secrets"}}),
		create)
	wantError(t, err, "roles.rbac.authorization.k8s.io \"more\" is forbidden: user \"anna\" (groups=[\"dev\" \"system:authenticated\"]) is attempting to grant RBAC permissions not currently held:\n{APIGroups:[\"\"], Resources:[\"secrets\"], Verbs:[\"get\" \"list\"]}")

	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "up"}, Subjects: []rbacv1.Subject{{Kind: "User", Name: "anna"}},
		RoleRef: rbacv1.RoleRef{Kind: "ClusterRole", Name: "cluster-admin"},
	}
	_, err = anna.RbacV1().RoleBindings("team").Create(t.Context(), binding, create)
	wantError(t, err, `rolebindings.rbac.authorization.k8s.io "up" is forbidden: user "anna"`)

	c.grant(t, "team", "bind", rbacv1.Subject{Kind: "User", Name: "anna"},
		rbacv1.PolicyRule{Verbs: []string{"bind"}, APIGroups: all.APIGroups, Resources: []string{"clusterroles"},
			ResourceNames: []string{"cluster-admin"}})
	eventually(t, "anna may bind", func() bool {
		_, err = anna.RbacV1().RoleBindings("team").Create(t.Context(), binding, create)
		return err == nil
	})
	changed := binding.DeepCopy()
	changed.RoleRef.Name = "view"
	changed.ResourceVersion = ""
	if _, err = c.admin.RbacV1().RoleBindings("team").Update(t.Context(), changed,
		metav1.UpdateOptions{}); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "cannot change roleRef") {
		t.Errorf("changing roleRef: %v", err)
	}
}

func (c *cluster) testBootstrapToken(t *testing.T) {
	_, err := c.admin.CoreV1().Secrets("kube-system").Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-token-abcdef"}, Type: "bootstrap.kubernetes.io/token",
		StringData: map[string]string{"token-id": "abcdef", "token-secret": "0123456789abcdef",
			"usage-bootstrap-authentication": "true"},
	}, create)
	if err != nil {
		t.Fatal(err)
	}
	var who *authenticationv1.SelfSubjectReview
	eventually(t, "the token is known", func() bool {
		who, err = c.bearer(t, "abcdef.0123456789abcdef").AuthenticationV1().SelfSubjectReviews().Create(t.Context(),
			&authenticationv1.SelfSubjectReview{}, create)
		return err == nil
	})
	if u := who.Status.UserInfo; u.Username != "system:bootstrap:abcdef" || strings.Join(u.Groups, ",") != "system:bootstrappers,system:authenticated" {
		t.Errorf("user %v", u)
	}
	_, err = c.bearer(t, "abcdef.0123456789abcdee").CoreV1().Pods("").List(t.Context(), metav1.ListOptions{})
	if !apierrors.IsUnauthorized(err) {
		t.Errorf("wrong secret: %v", err)
	}
}

func (c *cluster) testPodToken(t *testing.T) {
	c.namespace(t, "apps")
	ctx := t.Context()
	sa := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"},
		ImagePullSecrets: []corev1.LocalObjectReference{{Name: "registry"}}}
	if _, err := c.admin.CoreV1().ServiceAccounts("apps").Create(ctx, sa, create); err != nil {
		t.Fatal(err)
	}
	pod, err := c.admin.CoreV1().Pods("apps").Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}, create)
	if err != nil {
		t.Fatal(err)
	}
	if spec := pod.Spec; spec.ServiceAccountName != "default" || len(spec.ImagePullSecrets) != 1 ||
		len(spec.Volumes) != 1 ||
		spec.Containers[0].VolumeMounts[0].MountPath != "/var/run/secrets/kubernetes.io/serviceaccount" ||
		len(spec.Tolerations) != 2 || spec.Priority == nil || *spec.Priority != 0 {
		t.Errorf("admission left %+v", spec)
	}
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: "web", UID: pod.UID},
	}}
	issued, err := c.admin.CoreV1().ServiceAccounts("apps").CreateToken(ctx, "default", request, create)
	if err != nil {
		t.Fatal(err)
	}
	if len(issued.Spec.Audiences) != 1 || issued.Spec.Audiences[0] == "" {
		t.Errorf("audiences %q, want the server's", issued.Spec.Audiences)
	}
	dry, err := c.admin.CoreV1().ServiceAccounts("apps").CreateToken(ctx, "default", request,
		metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err != nil || dry.Status.Token == "" {
		t.Errorf("a dry run is answered %+v %v, want a token", dry, err)
	}
	for kind, want := range map[string]string{
		"Pod": `pods "none" not found`, "Secret": `secrets "none" not found`, "Node": `nodes "none" not found`,
	} {
		_, err := c.admin.CoreV1().ServiceAccounts("apps").CreateToken(ctx, "default", &authenticationv1.TokenRequest{
			Spec: authenticationv1.TokenRequestSpec{
				BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: kind, Name: "none"},
			}}, create)
		if !apierrors.IsNotFound(err) || err.Error() != want {
			t.Errorf("a token of a %s that is not there: %v", kind, err)
		}
	}
	inPod := c.bearer(t, issued.Status.Token)
	_, err = inPod.CoreV1().Pods("apps").Get(ctx, "web", get)
	wantError(t, err, `User "system:serviceaccount:apps:default" cannot get resource "pods"`)
	c.grant(t, "apps", "pods", rbacv1.Subject{Kind: "ServiceAccount", Name: "default"},
		rbacv1.PolicyRule{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"pods"}})
	eventually(t, "the pod reads the API", func() bool {
		_, err = inPod.CoreV1().Pods("apps").Get(ctx, "web", get)
		return err == nil
	})
	review, err := c.admin.AuthenticationV1().TokenReviews().Create(ctx,
		&authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: issued.Status.Token}}, create)
	if err != nil || !review.Status.Authenticated ||
		review.Status.User.Extra["authentication.kubernetes.io/pod-name"][0] != "web" {
		t.Errorf("token review %v %v", review, err)
	}
	review, err = c.admin.AuthenticationV1().TokenReviews().Create(ctx,
		&authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: "x.y.z"}}, create)
	if err != nil || review.Status.Authenticated || !strings.Contains(review.Status.Error, "invalid bearer token") {
		t.Errorf("review of a bad token %v %v", review, err)
	}
}

func (c *cluster) testNode(t *testing.T) {
	ctx := t.Context()
	c.namespace(t, "work")
	n1 := c.user(t, "system:node:n1", "system:nodes")
	node := func(name string) *corev1.Node { return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}} }
	labelled, err := n1.CoreV1().Nodes().Create(ctx, node("n1"), create)
	if err != nil {
		t.Fatal(err)
	}
	_, err = n1.CoreV1().Nodes().Create(ctx, node("n2"), create)
	wantError(t, err, `node "n1" is not allowed to modify node "n2"`)
	labelled.Labels = map[string]string{"node-restriction.kubernetes.io/team": "x"}
	_, err = n1.CoreV1().Nodes().Update(ctx, labelled, metav1.UpdateOptions{})
	wantError(t, err, "is not allowed to modify labels: node-restriction.kubernetes.io/team")

	for _, name := range []string{"used", "unused"} {
		if _, err := c.admin.CoreV1().Secrets("work").Create(ctx,
			&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}}, create); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.admin.CoreV1().ServiceAccounts("work").Create(ctx,
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, create); err != nil {
		t.Fatal(err)
	}
	pod, err := c.admin.CoreV1().Pods("work").Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: corev1.PodSpec{
			NodeName: "n1", Containers: []corev1.Container{{Name: "c", Image: "i"}},
			Volumes: []corev1.Volume{
				{Name: "s", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "used"}}}},
		},
	}, create)
	if err != nil {
		t.Fatal(err)
	}
	// At once, as an agent does: a refusal for the informer's lag would cost a retry.
	if _, err := n1.CoreV1().Secrets("work").Get(ctx, "used", get); err != nil {
		t.Errorf("secret of the node's pod: %v", err)
	}
	_, err = n1.CoreV1().Secrets("work").Get(ctx, "unused", get)
	wantError(t, err, "no relationship found between node 'n1' and this object")

	request := func(audiences ...string) *authenticationv1.TokenRequest {
		return &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
			Audiences: audiences,
			BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod",
				Name: "p", UID: pod.UID},
		}}
	}
	if _, err := n1.CoreV1().ServiceAccounts("work").CreateToken(ctx, "default", request(), create); err != nil {
		t.Errorf("token of the node's pod: %v", err)
	}
	_, err = n1.CoreV1().ServiceAccounts("work").CreateToken(ctx, "default", request("vault"), create)
	wantError(t, err, `audience "vault" not found in pod spec volume`)
	_, err = n1.CoreV1().ServiceAccounts("work").CreateToken(ctx, "default", &authenticationv1.TokenRequest{}, create)
	wantError(t, err, "node requested token not bound to a pod")
	_, err = n1.CoreV1().Pods("work").List(ctx, metav1.ListOptions{})
	wantError(t, err, "can only list/watch pods with spec.nodeName field selector")
	if _, err := n1.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=n1"}); err != nil {
		t.Errorf("own pods: %v", err)
	}
	if !c.canI(t, n1, "watch", "endpointslices", "discovery.k8s.io", "") ||
		c.canI(t, n1, "update", "endpointslices", "discovery.k8s.io", "work") {
		t.Error("an agent reads endpoint slices, and writes none")
	}
}
