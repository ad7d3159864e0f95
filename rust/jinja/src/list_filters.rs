//! Filters for lists that do not compare items.

use crate::args::{Args, count};
use crate::arithmetic;
use crate::ast::BinaryOp;
use crate::error::{Res, fail};
use crate::interp::Interp;
use crate::print;
use crate::text::TextBuf;
use crate::value::{ListKind, Value};

impl Interp<'_> {
    pub(crate) fn list_filter(&mut self, name: &str, input: &Value, args: Args) -> Res<Value> {
        match name {
            "first" => {
                args.end()?;
                let first = match input {
                    Value::Iter(iter) => iter.next()?,
                    Value::Str(text) => {
                        let first = text.as_str().chars().next();
                        first.map(|c| Value::Str(text.slice(0..c.len_utf8())))
                    }
                    Value::List(list) => list.items.first().cloned(),
                    other => other.items(&self.budget)?.into_iter().next(),
                };
                Ok(first.unwrap_or_else(|| Value::missing("No first item, sequence was empty.")))
            }
            "last" => {
                args.end()?;
                let last = match input {
                    Value::Iter(_) => fail!("'generator' object is not reversible"),
                    Value::Str(text) => {
                        let last = text.as_str().chars().next_back();
                        last.map(|c| Value::Str(text.slice(text.len() - c.len_utf8()..text.len())))
                    }
                    Value::List(list) => list.items.last().cloned(),
                    other => other.items(&self.budget)?.pop(),
                };
                Ok(last.unwrap_or_else(|| Value::missing("No last item, sequence was empty.")))
            }
            "list" => {
                args.end()?;
                Value::list(input.items(&self.budget)?, &self.budget)
            }
            "reverse" => {
                args.end()?;
                self.reverse(input)
            }
            "sum" => self.sum(input, args),
            "join" => self.join(input, args),
            "batch" => self.batch(input, args),
            _ => self.slices(input, args),
        }
    }

    fn reverse(&mut self, input: &Value) -> Res<Value> {
        if let Value::Str(text) = input {
            self.budget.pay(text.cost().saturating_mul(2))?;
            let mut out = TextBuf::default();
            for (at, c) in text.as_str().char_indices().rev() {
                out.push_char(c, text.source_at(at));
            }
            return Ok(Value::Str(out.finish()));
        }
        let mut items = input.items(&self.budget)?;
        items.reverse();
        match input {
            Value::Iter(_) => Value::list(items, &self.budget),
            Value::Map(_) => Value::iter("dict_reversekeyiterator", items, &self.budget),
            _ => Value::iter("list_reverseiterator", items, &self.budget),
        }
    }

    fn sum(&mut self, input: &Value, mut args: Args) -> Res<Value> {
        let attribute = args.next("attribute").filter(|value| !matches!(value, Value::None));
        let mut total = args.next("start").unwrap_or(Value::Int(0));
        args.end()?;
        if matches!(total, Value::Str(_)) {
            fail!("sum() can't sum strings [use ''.join(seq) instead]");
        }
        for item in input.items(&self.budget)? {
            let item = match &attribute {
                Some(attribute) => self.member(item, attribute, None)?,
                None => item,
            };
            total = arithmetic::binary(BinaryOp::Add, &total, &item, self)?;
        }
        Ok(total)
    }

    fn join(&mut self, input: &Value, mut args: Args) -> Res<Value> {
        let separator = args.next("d").unwrap_or_else(|| Value::text(""));
        let attribute = args.next("attribute").filter(|value| !matches!(value, Value::None));
        args.end()?;
        let separator = print::text_of(&separator, self)?;
        let mut out = TextBuf::default();
        for (at, item) in input.items(&self.budget)?.into_iter().enumerate() {
            if at > 0 {
                self.budget.pay(separator.cost())?;
                out.push_text(&separator);
            }
            let item = match &attribute {
                Some(attribute) => self.member(item, attribute, None)?,
                None => item,
            };
            print::str_into(&item, &mut out, self)?;
        }
        self.budget.pay(out.len())?;
        Ok(Value::Str(out.finish()))
    }

    fn batch(&mut self, input: &Value, mut args: Args) -> Res<Value> {
        let size = args.int("linecount")?;
        let fill = args.next("fill_with").filter(|value| !matches!(value, Value::None));
        args.end()?;
        let size = count(size);
        let mut rows = Vec::new();
        let mut row: Vec<Value> = Vec::new();
        for item in input.items(&self.budget)? {
            if row.len() == size {
                rows.push(Value::list(std::mem::take(&mut row), &self.budget)?);
            }
            row.push(item);
        }
        if !row.is_empty() {
            if let Some(fill) = fill {
                let missing = size.saturating_sub(row.len());
                self.budget.items(missing)?;
                row.extend(std::iter::repeat_n(fill, missing));
            }
            rows.push(Value::list(row, &self.budget)?);
        }
        Value::iter("do_batch", rows, &self.budget)
    }

    fn slices(&mut self, input: &Value, mut args: Args) -> Res<Value> {
        let number = args.int("slices")?;
        let fill = args.next("fill_with").filter(|value| !matches!(value, Value::None));
        args.end()?;
        let items = input.items(&self.budget)?;
        if number == 0 {
            fail!("integer division or modulo by zero");
        }
        let number = count(number);
        self.budget.items(number)?;
        let mut slices = Vec::new();
        let (size, longer) = (items.len() / number.max(1), items.len() % number.max(1));
        let mut rest = items.into_iter();
        for at in 0..number {
            let length = size + usize::from(at < longer);
            let mut slice: Vec<Value> = rest.by_ref().take(length).collect();
            if at >= longer {
                slice.extend(fill.clone());
            }
            slices.push(Value::sequence(ListKind::List, slice, &self.budget)?);
        }
        Value::iter("sync_do_slice", slices, &self.budget)
    }
}
