package authorization

import (
	"errors"
	"fmt"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

var errNoRules = errors.New("the server resolves no RBAC rules")

func attributesOf(spec *authorizationv1.SubjectAccessReviewSpec) authorizer.AttributesRecord {
	u := &user.DefaultInfo{Name: spec.User, Groups: spec.Groups, UID: spec.UID}
	for k, v := range spec.Extra {
		if u.Extra == nil {
			u.Extra = map[string][]string{}
		}
		u.Extra[k] = v
	}
	return attributes(u, spec.ResourceAttributes, spec.NonResourceAttributes)
}

func attributes(u user.Info, resource *authorizationv1.ResourceAttributes,
	path *authorizationv1.NonResourceAttributes) authorizer.AttributesRecord {
	if resource == nil {
		return authorizer.AttributesRecord{User: u, Verb: path.Verb, Path: path.Path}
	}
	attrs := authorizer.AttributesRecord{
		User: u, Verb: resource.Verb, Namespace: resource.Namespace, Name: resource.Name,
		APIGroup: resource.Group, APIVersion: resource.Version, Resource: resource.Resource,
		Subresource:     resource.Subresource,
		ResourceRequest: true,
	}
	if attrs.APIVersion == "" {
		attrs.APIVersion = "*"
	}
	if s := resource.LabelSelector; s != nil {
		attrs.LabelSelectorRequirements, attrs.LabelSelectorParsingErr = labelRequirements(s)
	}
	if s := resource.FieldSelector; s != nil {
		attrs.FieldSelectorRequirements, attrs.FieldSelectorParsingErr = fieldRequirements(s)
	}
	return attrs
}

// Requirements that cannot be read are left out: they only narrow a request.

func labelRequirements(s *authorizationv1.LabelSelectorAttributes) (labels.Requirements, error) {
	if len(s.Requirements) == 0 {
		if s.RawSelector == "" {
			return nil, nil
		}
		selector, err := labels.Parse(s.RawSelector)
		if err != nil {
			return nil, err
		}
		requirements, _ := selector.Requirements()
		return requirements, nil
	}
	operators := map[metav1.LabelSelectorOperator]selection.Operator{
		metav1.LabelSelectorOpIn: selection.In, metav1.LabelSelectorOpNotIn: selection.NotIn,
		metav1.LabelSelectorOpExists: selection.Exists, metav1.LabelSelectorOpDoesNotExist: selection.DoesNotExist,
	}
	var out labels.Requirements
	var errs []error
	for _, r := range s.Requirements {
		op, ok := operators[r.Operator]
		if !ok {
			errs = append(errs, fmt.Errorf("%q is not a valid label selector operator", r.Operator))
			continue
		}
		requirement, err := labels.NewRequirement(r.Key, op, r.Values)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		out = append(out, *requirement)
	}
	return out, utilerrors.NewAggregate(errs)
}

func fieldRequirements(s *authorizationv1.FieldSelectorAttributes) (fields.Requirements, error) {
	if len(s.Requirements) == 0 {
		if s.RawSelector == "" {
			return nil, nil
		}
		selector, err := fields.ParseSelector(s.RawSelector)
		if err != nil {
			return nil, err
		}
		return selector.Requirements(), nil
	}
	operators := map[metav1.FieldSelectorOperator]selection.Operator{
		metav1.FieldSelectorOpIn: selection.Equals, metav1.FieldSelectorOpNotIn: selection.NotEquals,
	}
	var out fields.Requirements
	var errs []error
	for _, r := range s.Requirements {
		op, ok := operators[r.Operator]
		switch {
		case !ok && (r.Operator == metav1.FieldSelectorOpExists || r.Operator == metav1.FieldSelectorOpDoesNotExist):
			errs = append(errs, fmt.Errorf("fieldSelectors do not yet support %v", r.Operator))
		case !ok:
			errs = append(errs, fmt.Errorf("%q is not a valid field selector operator", r.Operator))
		case len(r.Values) != 1:
			errs = append(errs, fmt.Errorf("fieldSelectors must have one value"))
		default:
			out = append(out, fields.Requirement{Field: r.Key, Operator: op, Value: r.Values[0]})
		}
	}
	return out, utilerrors.NewAggregate(errs)
}

func evaluationError(err error, attrs *authorizer.AttributesRecord) string {
	var texts []string
	if err != nil {
		texts = append(texts, err.Error())
	}
	ignored := func(selector string, some bool) {
		part := ""
		if some {
			part = "partially "
		}
		texts = append(texts, "spec.resourceAttributes."+selector+" "+part+"ignored due to parse error")
	}
	if attrs.FieldSelectorParsingErr != nil {
		ignored("fieldSelector", len(attrs.FieldSelectorRequirements) > 0)
	}
	if attrs.LabelSelectorParsingErr != nil {
		ignored("labelSelector", len(attrs.LabelSelectorRequirements) > 0)
	}
	return strings.Join(texts, "; ")
}
