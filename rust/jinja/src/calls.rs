//! Calls of methods, functions, macros and loops.

use std::sync::Arc;

use crate::args::Args;
use crate::ast::{Call, ExprKind, Macro};
use crate::error::{Res, fail, shortened};
use crate::interp::Interp;
use crate::methods::method_of;
use crate::value::{MacroRef, Value};

impl<'t> Interp<'t> {
    pub(crate) fn call_expr(&mut self, call: &'t Call) -> Res<Value> {
        // A method is called directly, without a bound-method value.
        if let ExprKind::Attribute(of, name) = &call.callee.kind {
            let of = self.eval(of)?;
            if let Some(method) = method_of(&of, name) {
                let args = self.args(&call.args)?;
                return self.call_method(&of, method, args);
            }
            let callee = self.attribute(&of, name)?;
            let args = self.args(&call.args)?;
            return self.call(&callee, args);
        }
        let callee = self.eval(&call.callee)?;
        let args = self.args(&call.args)?;
        self.call(&callee, args)
    }

    /// Calls a value.
    pub(crate) fn call(&mut self, callee: &Value, mut args: Args) -> Res<Value> {
        match callee {
            Value::Macro(reference) => self.call_macro(*reference, args),
            Value::Function(function) => self.call_function(*function, args),
            Value::Method(bound) => self.call_method(&bound.0, bound.1, args),
            Value::Loop(state) => {
                let iterable = args.required("iterable")?;
                args.end()?;
                self.recurse(state, &iterable)
            }
            Value::Joiner(joiner) => {
                args.end()?;
                let first = !joiner.used.replace(true);
                Ok(if first { Value::text("") } else { joiner.separator.clone() })
            }
            Value::Undefined(undefined) => Err(undefined.fault()),
            other => fail!("'{}' object is not callable", other.type_name()),
        }
    }

    /// A call block: its body becomes the `caller` of the call. Without a call only the body is rendered.
    pub(crate) fn call_block(&mut self, call: Option<&'t Call>, index: usize) -> Res<Value> {
        let caller = self.macro_value(index);
        let Some(call) = call else {
            return self.call(&caller, Args::default());
        };
        let callee = self.eval(&call.callee)?;
        let mut args = self.args(&call.args)?;
        if args.named.iter().any(|(name, _)| **name == *"caller") {
            fail!("got multiple values for keyword argument 'caller'");
        }
        args.named.push(("caller".into(), caller));
        self.call(&callee, args)
    }

    fn call_macro(&mut self, reference: MacroRef, args: Args) -> Res<Value> {
        let program = self.program;
        let Some(definition) = program.macros.get(reference.index) else { return Ok(Value::None) };
        self.enter()?;
        let back = self.push_frame(definition.function.slots, reference.frame);
        let done = back.and_then(|back| {
            let captured = self.bind(definition, args).and_then(|()| {
                self.begin(&definition.scope)?;
                self.set_defaults(definition)?;
                self.capture(|interp| interp.body(&definition.body))
            });
            self.pop_frame(back);
            captured
        });
        self.leave();
        let (text, _) = done?;
        self.budget.pay(text.len())?;
        Ok(Value::Str(text.finish()))
    }

    /// Sets the parameters of a macro to its arguments.
    #[inline(never)]
    fn bind(&mut self, definition: &Macro, args: Args) -> Res<()> {
        let Args { positional, mut named, .. } = args;
        let mut positional = positional.into_iter();
        let given = positional.len();
        let name = shortened(&definition.name);
        let mut has_caller = definition.explicit_caller && given >= definition.parameters.len();
        for parameter in &definition.parameters {
            let value = positional.next().or_else(|| {
                has_caller |= *parameter.name == *"caller";
                take(&mut named, &parameter.name)
            });
            self.set_slot(parameter.slot.index, value);
        }
        if let Some(slot) = definition.caller.filter(|_| !has_caller) {
            let caller = take(&mut named, "caller");
            let caller = caller.unwrap_or_else(|| Value::missing("No caller defined"));
            self.set_slot(slot, Some(caller));
        }
        if let Some(slot) = definition.kwargs {
            let entries = named.drain(..).map(|(name, value)| {
                let name = crate::text::Text::new(name, crate::text::Source::Template);
                (Value::Str(name), value)
            });
            let entries = entries.collect();
            let value = Value::map(entries, &self.budget)?;
            self.set_slot(slot, Some(value));
        } else if let Some((unknown, _)) = named.first() {
            fail!("macro '{name}' takes no keyword argument '{}'", shortened(unknown));
        }
        if let Some(slot) = definition.varargs {
            let value = Value::tuple(positional.collect(), &self.budget)?;
            self.set_slot(slot, Some(value));
        } else if positional.len() > 0 {
            let most = definition.parameters.len();
            fail!("macro '{name}' takes not more than {most} argument(s)");
        }
        Ok(())
    }

    /// Gives the parameters without an argument their defaults.
    #[inline(never)]
    fn set_defaults(&mut self, definition: &'t Macro) -> Res<()> {
        let first = definition.parameters.len() - definition.defaults.len();
        for (at, parameter) in definition.parameters.iter().enumerate() {
            if self.slot(parameter.slot).is_some() {
                continue;
            }
            let default = at.checked_sub(first).and_then(|at| definition.defaults.get(at));
            let value = match default {
                Some(expr) => self.eval(expr)?,
                None => Value::missing(format!(
                    "parameter '{}' was not provided",
                    shortened(&parameter.name)
                )),
            };
            self.set_slot(parameter.slot.index, Some(value));
        }
        Ok(())
    }
}

fn take(named: &mut Vec<(Arc<str>, Value)>, name: &str) -> Option<Value> {
    let at = named.iter().position(|(known, _)| **known == *name)?;
    Some(named.remove(at).1)
}
